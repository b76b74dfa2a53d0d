"""The base class of callbacks, and the value with which one ends a run."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fesem_jax.run.callbacks.events import End, Evaluation, Round, RoundEnd, Start


class Stop(NamedTuple):
  """The return value of a callback that ends the run after this round.

  Attributes:
    reason: a few words; the entry `ended` of `summary.json`.
  """

  reason: str


class Callback:
  """The base class of callbacks; its methods do nothing.

  Override the methods that you need, and pass instances of your class to
  `simulate(..., callbacks=[...])`. They are called in the order of the list. With
  several processes, every process makes the same calls; write files in the first
  process only (`processes.is_first()`).

  If a method raises, the other callbacks are still called for the round, the round is
  saved as after Ctrl-C, and the error ends the run. The same command continues after
  that round.

  Attributes:
    wants_clients: whether `Round.info.clients` reports each client of the round; this
      fetches four numbers per client.
  """

  wants_clients: bool = False

  def on_start(self, start: Start) -> Stop | None:
    """Called before the first round, or before the first round of a resumed run.

    Args:
      start: the run, and the rounds that are done.

    Returns:
      `Stop` to run no further round; None to continue.
    """

  def on_round(self, event: Round) -> Stop | None:
    """Called after the local training of a round, before any evaluation.

    Args:
      event: the round. New entries of `event.record` are saved.

    Returns:
      `Stop` to end the run after an evaluation of this round; None to continue.
    """

  def on_evaluation(self, event: Evaluation) -> Stop | None:
    """Called after each evaluation of the deployed models.

    Args:
      event: the evaluation. New entries of `event.record` are saved.

    Returns:
      `Stop` to end the run after this round; None to continue.
    """

  def on_round_end(self, event: RoundEnd) -> None:
    """Called when the record of a round is complete.

    Args:
      event: the round; round 0 contains the first clusters of the method.
    """

  def client_columns(self) -> Mapping[str, np.ndarray]:
    """Called after the last round, for additional columns of the table of clients.

    Returns:
      New column name -> [M] numbers, NaN for missing values. `Result.clients` and
      `clients.csv` contain them.
    """
    return {}

  def on_end(self, event: End) -> None:
    """Called after the last round, before the summary is written.

    Also called if `simulate` is called again for a finished run.

    Args:
      event: the result. New entries of `event.summary` are saved.
    """

  def close(self, error: BaseException | None) -> None:
    """Called last; `error` is the exception that ended the run, or None."""
