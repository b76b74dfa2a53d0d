"""Options of a run that `simulate` takes from its list of callbacks."""

from collections.abc import Sequence

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.phases import Phase
from fesem_jax.run.callbacks.callback import Callback, Stop
from fesem_jax.run.callbacks.events import Round, Start
from fesem_jax.run.results import records
from fesem_jax.utils.ranges import Count, checked


class Patience(Callback):
  """Ends a run after some rounds in which no client moved and Eq. 6 did not change.

  Eq. 6 counts if the method measures it, and may change by less than 0.1 %. Methods
  without clusters are refused. The reason of the end is 'patience'.

  Attributes:
    rounds: number of such rounds.
  """

  @checked
  def __init__(self, rounds: Count):
    """Ends a run that has settled.

    Args:
      rounds: number of such rounds.
    """
    self.rounds = rounds

  def on_start(self, start: Start) -> Stop | None:
    """Ends a resumed run that had already settled."""
    return self._decided(start.records)

  def on_round(self, event: Round) -> Stop | None:
    """Ends a run that has settled in this round."""
    return self._decided([*event.records, event.record])

  def _decided(self, history: Sequence[records.Record]) -> Stop | None:
    return Stop('patience') if records.settled(history, self.rounds) else None


class Progress(Callback):
  """Decides whether a run shows its progress, as it does without this callback.

  Attributes:
    shown: see `__init__`.
  """

  def __init__(self, shown: bool):
    """Shows the progress or not.

    Args:
      shown: True shows live lines on a terminal, and a line a minute elsewhere.
    """
    self.shown = shown


class Unseen(Callback):
  """Measures clients that take no part in a run, after its last round.

  The summary gets their figures as `unseen`; None for methods whose clients have
  personal models or layers.

  Attributes:
    splits: training and test split of these clients.
  """

  def __init__(self, train: FederatedData, test: FederatedData):
    """Measures clients that take no part.

    Args:
      train: training split of these clients, by whose losses they choose a model, as
        the second pair of `data.hold_out_clients` has it.
      test: test split of the same clients.
    """
    self.splits = train, test


class Drift(Callback):
  """Changes the data of a run at the beginning of some rounds.

  Attributes:
    phases: see `__init__`.
  """

  def __init__(self, phases: Sequence[Phase]):
    """Changes the data.

    Args:
      phases: splits that replace `train` and `test` from later rounds on, as those of
        `data.load_phases` but the first; only their values may differ.
    """
    self.phases = tuple(phases)
