"""Progress of runs: rich's live lines on a terminal, a line a minute in a log."""

import contextlib
import contextvars
import datetime
import sys
import time
from collections.abc import Iterator

from rich import progress as bars
from rich.console import Console

_EVERY = 60.0  # Seconds between lines of a log.


class Display(bars.Progress):
  """Shows operations and rounds on standard error, behind a `prefix`."""

  def __init__(self) -> None:
    console = Console(stderr=True, highlight=False)
    text = bars.TextColumn('{task.description}', markup=False)
    columns = text, bars.SpinnerColumn(), bars.TimeRemainingColumn(compact=True)
    super().__init__(
      *columns, console=console, transient=True, disable=not console.is_terminal,
      redirect_stdout=sys.stdout.isatty(),
    )  # fmt: skip
    self.prefix, self._logged = '', time.monotonic()
    self._rounds: bars.TaskID | None = None

  @contextlib.contextmanager
  def waiting_for(self, operation: str) -> Iterator[None]:
    """Shows the operation of a block."""
    began, title = time.monotonic(), self.prefix + operation
    task = self.add_task(title, total=None)
    try:
      yield
    finally:
      self.remove_task(task)
    if (seconds := time.monotonic() - began) >= _EVERY:
      self._log(f'{title}: {duration(seconds)}')

  def rounds(
    self, done: int, total: int, metrics: str = '', over: bool = False
  ) -> None:
    """Shows finished rounds and the metrics of the last one; `over` ends the run."""
    title = f'{self.prefix}round {done}/{total}' + f', {metrics}' * bool(metrics)
    if self._rounds is None:
      self._rounds = self.add_task(title, completed=done, total=total)
    self.update(self._rounds, completed=done, description=title)
    left = next(t for t in self.tasks if t.id == self._rounds).time_remaining
    if time.monotonic() - self._logged >= _EVERY:
      self._log(title + ('' if left is None else f', {duration(left)} left'))
    if over:
      self.remove_task(self._rounds)
      self._rounds = None

  def _log(self, text: str) -> None:
    self._logged = time.monotonic()
    if self.disable:
      print(text, file=sys.stderr, flush=True)


# The current display; None if progress is not shown.
current = contextvars.ContextVar[Display | None]('current', default=None)


@contextlib.contextmanager
def shown(progress: bool = True) -> Iterator[None]:
  """Shows the progress of a block on standard error, or nothing."""
  outer = current.get()
  display = (outer or Display()) if progress else None
  token = current.set(display)
  try:
    with contextlib.nullcontext() if outer or not display else display:
      yield
  finally:
    current.reset(token)


def waiting_for(operation: str) -> contextlib.AbstractContextManager[None]:
  """Shows the operation of a block."""
  shown = current.get()
  return shown.waiting_for(operation) if shown else contextlib.nullcontext()


def duration(seconds: float) -> str:
  """3661 -> '1:01:01'."""
  return str(datetime.timedelta(seconds=round(seconds)))
