"""Progress of a run."""

import time
from collections import deque

from fesem_jax.callbacks.callback import Callback
from fesem_jax.callbacks.events import Evaluation, RoundEnd, Start
from fesem_jax.results import records
from fesem_jax.utils import progress_lines
from fesem_jax.utils.progress_text import Rounds

_RECENT = 20  # Rounds from which the remaining time is estimated.


class Progress(Callback):
  """Shows rounds, loss, first metric, cluster sizes and the remaining time.

  `progress_lines.shown` decides whether and where.
  """

  def on_start(self, start: Start) -> None:
    """Shows the rounds that are done."""
    self._display = progress_lines.display()
    self._task, self._total = start.algorithm.local.model.measured_as, start.rounds
    measured = [r for r in start.records if 'finetuned' in r]
    self._measured = measured[-1] if measured else {}
    self._ends: deque[float] = deque([time.monotonic()], _RECENT + 1)
    if start.done < start.rounds:
      self._display.rounds(Rounds(start.done, start.rounds))

  def on_evaluation(self, event: Evaluation) -> None:
    """Keeps the metrics for rounds without an evaluation."""
    self._measured = event.record

  def on_round_end(self, event: RoundEnd) -> None:
    """Shows the round."""
    if not event.number:
      return
    self._ends.append(time.monotonic())
    each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
    figures = records.progress(event.record, self._measured, self._task)
    left = each * (self._total - event.number)
    rounds = Rounds(event.number, self._total, figures, left)
    self._display.rounds(rounds, over=event.last)
