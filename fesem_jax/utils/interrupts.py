"""Ctrl-C and signals of a scheduler: the round is finished and saved before the end."""

import contextlib
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fesem_jax.utils import processes

# Ctrl-C, a scheduler's preemption or time limit, its warning, and a closed terminal.
# Windows has only the first two.
SIGNALS = tuple(
  getattr(signal, name)
  for name in ('SIGINT', 'SIGTERM', 'SIGUSR1', 'SIGHUP')
  if hasattr(signal, name)
)


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it.
  """The run was interrupted after a complete round and can be resumed."""

  @classmethod
  def after(cls, done: int, rounds: int, folder: pathlib.Path | None) -> 'Stopped':
    """The exception of a run saved in `folder`, if any."""
    where = f'saved in {folder}. Run the same command again to continue.'
    where = where if folder else 'nothing was saved (no workdir).'
    return cls(f'Stopped after round {done} of {rounds}; {where}')


def raise_interrupts() -> None:
  """Makes `SIGNALS` raise KeyboardInterrupt, but for those ignored or handled."""
  for number in SIGNALS:
    if signal.getsignal(number) == signal.SIG_DFL:
      signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def handed_on(send: Callable[[int], None]) -> Iterator[list[int]]:
  """Calls `send` with each of `SIGNALS` that comes; yields a list of them."""
  received: list[int] = []

  def hand_on(number: int, frame: Any) -> None:
    received.append(number)
    send(number)

  with _handled(SIGNALS, hand_on):
    yield received


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
  """Defers `SIGNALS`; Ctrl-C after any of them interrupts immediately.

  Yields a function that returns whether one came. Signals that the program handles or
  ignores are left alone, and so are all outside the main thread.
  """
  requested, prints = False, processes.is_first()

  def request(number: int, frame: Any) -> None:
    nonlocal requested
    if requested:  # A scheduler may first warn and then end.
      return
    requested = True
    signal.signal(signal.SIGINT, before[signal.SIGINT])
    if prints:
      print('\nFinishing this round, then saving ...', file=sys.stderr)

  if threading.current_thread() is not threading.main_thread():
    yield lambda: False
    return
  free = signal.SIG_DFL, signal.default_int_handler
  deferred = {n for n in SIGNALS if n == signal.SIGINT or signal.getsignal(n) in free}
  with _handled(deferred, request) as before:
    yield lambda: requested


@contextlib.contextmanager
def _handled(numbers: Iterable[int], handler: Any) -> Iterator[dict[int, Any]]:
  """Handles some signals; yields the handlers before, which are restored at the end."""
  before = {n: signal.signal(n, handler) for n in numbers}
  try:
    yield before
  finally:
    for number, earlier in before.items():
      signal.signal(number, earlier)
