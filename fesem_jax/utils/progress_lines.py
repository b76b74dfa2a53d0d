"""What a run is waiting for, and for how long: lines on a terminal, never in a log."""

import contextlib
import contextvars
import sys
import time
from collections.abc import Iterator

import tqdm

_SHOWN = contextvars.ContextVar('shown', default=False)


@contextlib.contextmanager
def shown(progress: bool | None) -> Iterator[None]:
  """Shows the waits of a block; None shows them where standard error is a terminal."""
  token = _SHOWN.set(sys.stderr.isatty() if progress is None else progress)
  try:
    yield
  finally:
    _SHOWN.reset(token)


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
  """Says what a block does when it begins, and how long it took when it ends."""
  if not _SHOWN.get():
    yield
    return
  # Through tqdm, so that a progress bar stays below.
  tqdm.tqdm.write(f'{what} ...', file=sys.stderr)
  began = time.perf_counter()
  yield
  seconds = time.perf_counter() - began
  tqdm.tqdm.write(f'{what}: {seconds:.1f} s', file=sys.stderr)
