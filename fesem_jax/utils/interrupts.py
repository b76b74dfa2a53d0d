"""Ctrl-C during a run: the round is finished and saved before the run stops."""

import contextlib
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fesem_jax.utils import processes


class Stopped(Exception):  # noqa: N818 - not an error: the user pressed Ctrl-C.
  """The run was interrupted after a complete round and can be resumed."""

  @classmethod
  def after(cls, done: int, rounds: int, folder: pathlib.Path | None) -> 'Stopped':
    """The exception of a run saved in `folder`, if any, with instructions to resume."""
    if folder is None:
      return cls(
        f'Stopped after round {done} of {rounds}; nothing was saved (no workdir).'
      )
    return cls(
      f'Stopped after round {done} of {rounds}; saved in {folder}. Run the same '
      'command again to continue.'
    )


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
  """Defers the first Ctrl-C; a second one interrupts immediately.

  Yields a function that returns whether Ctrl-C was pressed. It is always False outside
  the main thread, since only the main thread receives signals.
  """
  requested, speaks = False, processes.is_first()

  def request(signum: int, frame: Any) -> None:
    nonlocal requested
    requested = True
    signal.signal(signal.SIGINT, before)
    if speaks:
      print('\nFinishing this round, then saving ...', file=sys.stderr)

  if threading.current_thread() is not threading.main_thread():
    yield lambda: False
    return
  before = signal.signal(signal.SIGINT, request)
  try:
    yield lambda: requested
  finally:
    signal.signal(signal.SIGINT, before)
