"""Progress on a terminal: one or two live lines below what is printed."""

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fesem_jax.utils.progress_display import Display, Rounds, duration, in_words

_A_SECOND = 4  # Refreshes per second.


class Panel(Display):
  """Live lines: pending operations, a progress bar and the last round's metrics.

  A wait leaves a permanent line after `long` seconds.
  """

  def __init__(self, long: float):
    self._long = long
    self._rounds: Rounds | None = None
    self._began = time.monotonic()
    self._waits: list[tuple[str, float, Spinner]] = []
    self._console = Console(stderr=True, highlight=False)
    self._live = Live(
      console=self._console,
      refresh_per_second=_A_SECOND,
      transient=True,
      get_renderable=self._drawn,
      redirect_stdout=sys.stdout.isatty(),
    )

  @contextlib.contextmanager
  def waiting_for(self, what: str) -> Iterator[None]:
    """See `Display`."""
    began = time.monotonic()
    with self.within_a_round(what):
      yield
    if (took := time.monotonic() - began) >= self._long:
      self._console.print(Text(f'{what}: {took:.1f} s'))

  @contextlib.contextmanager
  def within_a_round(self, what: str) -> Iterator[None]:
    """See `Display`."""
    wait = (what, time.monotonic(), Spinner('dots'))
    self._waits.append(wait)
    self._live.start()
    try:
      yield
    finally:
      self._waits.remove(wait)

  def rounds(self, rounds: Rounds, over: bool = False) -> None:
    """See `Display`."""
    if self._rounds is None:
      self._began = time.monotonic()
    self._rounds = None if over else rounds
    self._live.start()
    if over:
      took = duration(time.monotonic() - self._began)
      self._console.print(Text(f'{in_words(rounds, over)}, {took} in all'))

  def close(self) -> None:
    """See `Display`."""
    self._live.stop()

  def _drawn(self) -> RenderableType:
    lines: list[RenderableType] = []
    if self._rounds is not None:
      lines.append(_bar(self._rounds))
      if self._rounds.figures:
        lines.append(_line(self._rounds.figures))
    for what, began, spinner in self._waits:
      now = time.monotonic()
      frame = str(spinner.render(now))
      lines.append(_line(f'{frame} {duration(now - began)} {what}'))
    return Group(*lines)


def _bar(rounds: Rounds) -> Table:
  """'round 3/20 ━━━━━━╸━━━━━━━━━━ 0:12 left' over the whole width."""
  grid = Table.grid(padding=(0, 1), expand=True)
  grid.add_column(no_wrap=True)
  grid.add_column(ratio=1)
  grid.add_column(no_wrap=True)
  left = '' if rounds.left is None else f'{duration(rounds.left)} left'
  bar = ProgressBar(total=rounds.total, completed=rounds.done)
  grid.add_row(f'round {rounds.done}/{rounds.total}', bar, left)
  return grid


def _line(text: str) -> Text:
  return Text(text, no_wrap=True, overflow='ellipsis')
