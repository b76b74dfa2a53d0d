"""Early stopping of runs whose clusters have settled."""

from collections.abc import Sequence

from fesem_jax.callbacks.callback import Callback, Stop
from fesem_jax.callbacks.events import Round, Start
from fesem_jax.results import records


class Patience(Callback):
  """Ends a run after some rounds in which no client moved and Eq. 6 did not change.

  `rounds` is the number of such rounds, see `records.settled`; 0 never ends a run.
  """

  def __init__(self, rounds: int):
    self._rounds = rounds

  def on_start(self, start: Start) -> Stop | None:
    """Ends a resumed run that had already settled."""
    return self._decided(start.records)

  def on_round(self, event: Round) -> Stop | None:
    """Ends a run that has settled in this round."""
    return self._decided([*event.records, event.record]) if self._rounds else None

  def _decided(self, history: Sequence[records.Record]) -> Stop | None:
    return Stop('patience') if records.settled(history, self._rounds) else None
