"""The progress of a run's rounds as text, and what a display of it does."""

import contextlib
from typing import NamedTuple


class Rounds(NamedTuple):
  """Progress of the rounds of a run."""

  done: int  # finished rounds
  total: int
  figures: str = ''  # metrics of the last round
  left: float | None = None  # seconds until the last round, or None


def duration(seconds: float) -> str:
  """61 -> '1:01', 3661 -> '1:01:01'."""
  minutes, s = divmod(round(seconds), 60)
  hours, m = divmod(minutes, 60)
  return f'{hours}:{m:02}:{s:02}' if hours else f'{m}:{s:02}'


def in_words(rounds: Rounds, over: bool = False) -> str:
  """'round 3/20: loss 0.5, accuracy 90.0 %, 0:12 left'; `over` leaves out the time."""
  parts = [rounds.figures] if rounds.figures else []
  if rounds.left is not None and not over:
    parts.append(f'{duration(rounds.left)} left')
  of_rounds = f'round {rounds.done}/{rounds.total}'
  return f'{of_rounds}: {", ".join(parts)}' if parts else of_rounds


class Display:
  """A display of progress; this one shows nothing."""

  def waiting_for(self, what: str) -> contextlib.AbstractContextManager[None]:
    """Shows the operation of a block, and its duration if it is long."""
    return contextlib.nullcontext()

  def within_a_round(self, what: str) -> contextlib.AbstractContextManager[None]:
    """Shows the operation of a block without a separate line for it."""
    return contextlib.nullcontext()

  def rounds(self, rounds: Rounds, over: bool = False) -> None:
    """Shows the progress of the rounds; `over` after the last one."""

  def close(self) -> None:
    """Ends the display."""
