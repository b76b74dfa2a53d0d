"""Progress of runs: rich's live lines on a terminal, a line a minute in a log."""

import contextlib
import contextvars
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
  BarColumn,
  Progress,
  TaskID,
  TextColumn,
  TimeElapsedColumn,
  TimeRemainingColumn,
)

_EVERY = 60.0  # Seconds between lines of a log.


class Display:
  """Shows operations and rounds on standard error."""

  def __init__(self) -> None:
    console = Console(stderr=True, highlight=False)
    self._progress = Progress(
      TextColumn('{task.description}', markup=False),
      BarColumn(),
      TimeElapsedColumn(),
      TimeRemainingColumn(),
      TextColumn('{task.fields[figures]}', markup=False),
      console=console,
      transient=True,
      redirect_stdout=sys.stdout.isatty(),
      disable=not console.is_terminal,
    )
    self._last = time.monotonic()
    self._rounds: TaskID | None = None

  @contextlib.contextmanager
  def waiting_for(self, what: str) -> Iterator[None]:
    """Shows the operation of a block."""
    began = time.monotonic()
    self._progress.start()
    task = self._progress.add_task(what, total=None, figures='')
    try:
      yield
    finally:
      self._progress.remove_task(task)
    if (seconds := time.monotonic() - began) >= _EVERY:
      self._log(f'{what}: {duration(seconds)}')

  def rounds(
    self, done: int, total: int, figures: str = '', over: bool = False
  ) -> None:
    """Shows the finished rounds of a run, and metrics of the last one.

    `over` says that no other round follows.
    """
    if self._rounds is None:
      self._progress.start()
      self._rounds = self._progress.add_task(
        '', completed=done, total=total, figures=''
      )
    about = _ABOUT.get()
    text = f'{about}: round {done}/{total}' if about else f'round {done}/{total}'
    self._progress.update(
      self._rounds, completed=done, description=text, figures=figures
    )
    (task,) = [t for t in self._progress.tasks if t.id == self._rounds]
    left = task.time_remaining
    if time.monotonic() - self._last >= _EVERY:
      parts = text, figures, '' if left is None else f'{duration(left)} left'
      self._log(', '.join(filter(None, parts)))
    if over:
      self._progress.remove_task(self._rounds)
      self._rounds = None

  def _log(self, text: str) -> None:
    self._last = time.monotonic()
    if self._progress.disable:
      print(text, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Removes the live lines."""
    self._progress.stop()


_SHOWN = contextvars.ContextVar[Display | None]('shown', default=None)
_ABOUT = contextvars.ContextVar[str]('about', default='')


@contextlib.contextmanager
def shown(progress: bool = True, what: str = '') -> Iterator[None]:
  """Shows the progress of a block on standard error, or nothing.

  `what` is the operation of the block, if it is a single one; see `waiting_for`.
  """
  outer = _SHOWN.get()
  display = (outer or Display()) if progress else None
  token = _SHOWN.set(display)
  try:
    with waiting_for(what) if what else contextlib.nullcontext():
      yield
  finally:
    _SHOWN.reset(token)
    if display is not None and display is not outer:
      display.close()


def display() -> Display | None:
  """The current display; None if progress is not shown."""
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
  """Shows the operation of a block."""
  shown, about = _SHOWN.get(), _ABOUT.get()
  if shown is None:
    return contextlib.nullcontext()
  return shown.waiting_for(f'{about}: {what}' if about else what)


def duration(seconds: float) -> str:
  """61 -> '1:01', 3661 -> '1:01:01'."""
  minutes, s = divmod(round(seconds), 60)
  hours, m = divmod(minutes, 60)
  return f'{hours}:{m:02}:{s:02}' if hours else f'{m}:{s:02}'
