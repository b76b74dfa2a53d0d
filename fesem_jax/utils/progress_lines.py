"""Progress of runs: rich's live lines on a terminal, a line a minute in a log."""

import contextlib
import contextvars
import datetime
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
  Progress,
  SpinnerColumn,
  TaskID,
  TextColumn,
  TimeRemainingColumn,
)

_EVERY = 60.0  # Seconds between lines of a log.


class Display:
  """Shows operations and rounds on standard error."""

  def __init__(self) -> None:
    console = Console(stderr=True, highlight=False)
    self.live = Progress(
      TextColumn('{task.description}', markup=False),
      SpinnerColumn(),
      TimeRemainingColumn(compact=True),
      console=console,
      transient=True,
      redirect_stdout=sys.stdout.isatty(),
      disable=not console.is_terminal,
    )
    self.prefix = ''
    self._last = time.monotonic()
    self._rounds: TaskID | None = None

  @contextlib.contextmanager
  def waiting_for(self, operation: str) -> Iterator[None]:
    """Shows the operation of a block."""
    began, title = time.monotonic(), self.prefix + operation
    task = self.live.add_task(title, total=None)
    try:
      yield
    finally:
      self.live.remove_task(task)
    if (seconds := time.monotonic() - began) >= _EVERY:
      self._log(f'{title}: {duration(seconds)}')

  def rounds(
    self, done: int, total: int, metrics: str = '', over: bool = False
  ) -> None:
    """Shows finished rounds and the metrics of the last one; `over` ends the run."""
    title = f'{self.prefix}round {done}/{total}' + f', {metrics}' * bool(metrics)
    if self._rounds is None:
      self._rounds = self.live.add_task(title, completed=done, total=total)
    self.live.update(self._rounds, completed=done, description=title)
    (task,) = [t for t in self.live.tasks if t.id == self._rounds]
    if time.monotonic() - self._last >= _EVERY:
      self._log(f'{title}, {duration(task.time_remaining or 0.0)} left')
    if over:
      self.live.remove_task(self._rounds)
      self._rounds = None

  def _log(self, text: str) -> None:
    self._last = time.monotonic()
    if self.live.disable:
      print(text, file=sys.stderr, flush=True)


_SHOWN = contextvars.ContextVar[Display | None]('shown', default=None)


@contextlib.contextmanager
def shown(progress: bool = True, operation: str = '') -> Iterator[None]:
  """Shows the progress of a block on standard error, or nothing.

  `operation` is that of the block, if it is a single one; see `waiting_for`.
  """
  outer = _SHOWN.get()
  display = (outer or Display()) if progress else None
  token = _SHOWN.set(display)
  try:
    with contextlib.ExitStack() as stack:
      if display is not None and display is not outer:
        stack.enter_context(display.live)
      if operation:
        stack.enter_context(waiting_for(operation))
      yield
  finally:
    _SHOWN.reset(token)


def display() -> Display | None:
  """The current display; None if progress is not shown."""
  return _SHOWN.get()


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
  """Prefixes the lines of a block by what they are about, such as a method."""
  shown = _SHOWN.get() or Display()
  before, shown.prefix = shown.prefix, f'{what}: '
  try:
    yield
  finally:
    shown.prefix = before


def waiting_for(operation: str) -> contextlib.AbstractContextManager[None]:
  """Shows the operation of a block."""
  shown = _SHOWN.get()
  return shown.waiting_for(operation) if shown else contextlib.nullcontext()


def duration(seconds: float) -> str:
  """3661 -> '1:01:01'."""
  return str(datetime.timedelta(seconds=round(seconds)))
