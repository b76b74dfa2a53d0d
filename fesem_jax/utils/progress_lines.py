"""Progress of a run: a panel on a terminal, lines at a limited rate in a log."""

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Iterator

from fesem_jax.utils.progress_display import Display, Rounds, in_words

# Seconds after which a wait gets a line, and seconds between lines on rounds.
_LONG, _EVERY = 2.0, 30.0
_NOTHING = Display()
_SHOWN = contextvars.ContextVar[Display]('shown', default=_NOTHING)
_ABOUT = contextvars.ContextVar[str]('about', default='')


@contextlib.contextmanager
def shown(progress: bool | None, what: str = '') -> Iterator[None]:
  """Shows the progress of a block on standard error.

  If `progress` is False, it shows nothing; None shows a panel on a terminal, and
  elsewhere lines on operations that take long; True shows lines on all operations
  there. `what` is the operation of the block, if it is a single one; see `waiting_for`.
  """
  display = Display()
  if progress is not False and sys.stderr.isatty():
    from fesem_jax.utils.progress_panel import Panel  # Slow to import.

    display = Panel(_LONG)
  elif progress is not False:
    display = Lines(0.0, 1.0) if progress else Lines(_LONG, _EVERY)
  token = _SHOWN.set(display)
  try:
    with waiting_for(what) if what else contextlib.nullcontext():
      yield
  finally:
    _SHOWN.reset(token)
    display.close()


def display() -> Display:
  """The current display."""
  return _SHOWN.get()


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
  """Says before the operations of a block what they are for, such as a method."""
  token = _ABOUT.set(what)
  try:
    yield
  finally:
    _ABOUT.reset(token)


def waiting_for(what: str) -> contextlib.AbstractContextManager[None]:
  """Shows the operation of a block, and its duration if it is long."""
  about = _ABOUT.get()
  return display().waiting_for(f'{about}: {what}' if about else what)


def within_a_round(what: str) -> contextlib.AbstractContextManager[None]:
  """Shows the operation of a block on a terminal; a log does not mention it."""
  return display().within_a_round(what)


class Lines(Display):
  """Progress as lines, for a log.

  A wait gets a line after `long` seconds; lines on rounds are `every` seconds apart.
  """

  def __init__(self, long: float, every: float):
    self._long, self._every = long, every
    self._last, self._said = time.monotonic(), False

  @contextlib.contextmanager
  def waiting_for(self, what: str) -> Iterator[None]:
    """See `Display`."""
    began, begun = time.monotonic(), threading.Event()

    def begin() -> None:
      begun.set()
      _say(f'{what} ...')

    timer = threading.Timer(self._long, begin)
    timer.daemon = True
    if self._long:
      timer.start()
    else:
      begin()
    try:
      yield
    finally:
      timer.cancel()
    if begun.is_set():
      _say(f'{what}: {time.monotonic() - began:.1f} s')

  def rounds(self, rounds: Rounds, over: bool = False) -> None:
    """See `Display`."""
    now = time.monotonic()
    due = rounds.figures and now - self._last >= self._every
    if due or (over and self._said):
      self._last, self._said = now, True
      _say(in_words(rounds, over))


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
