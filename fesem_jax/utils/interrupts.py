"""Ctrl-C and signals of a scheduler: the round is finished and saved before the end."""

import contextlib
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fesem_jax.utils import processes

# Ctrl-C, a scheduler's preemption or time limit, its warning, and a closed terminal.
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it.
  """The run was interrupted after a complete round and can be resumed."""

  @classmethod
  def after(cls, done: int, rounds: int, folder: pathlib.Path | None) -> 'Stopped':
    """The exception of a run saved in `folder`, if any."""
    where = f'saved in {folder}. Run the same command again to continue.'
    where = where if folder else 'nothing was saved (no workdir).'
    return cls(f'Stopped after round {done} of {rounds}; {where}')


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
  """Defers `SIGNALS`; Ctrl-C after any of them interrupts immediately.

  Yields a function that returns whether one came. Signals that the program handles or
  ignores are left alone, and so are all outside the main thread.
  """
  if threading.current_thread() is not threading.main_thread():
    yield lambda: False
    return
  ctrl_c, prints = signal.getsignal(signal.SIGINT), processes.is_first()
  free = signal.SIG_DFL, signal.default_int_handler
  deferred = {n for n in SIGNALS if n == signal.SIGINT or signal.getsignal(n) in free}

  received: list[int] = []

  def handle(number: int, frame: Any) -> None:
    if prints and not received:
      print('\nFinishing this round, then saving ...', file=sys.stderr)
    received.append(number)
    signal.signal(signal.SIGINT, ctrl_c)

  before = {n: signal.signal(n, handle) for n in deferred}
  try:
    yield lambda: bool(received)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
