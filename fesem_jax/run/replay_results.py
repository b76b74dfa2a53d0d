"""The result of a repeated local training of one client."""

from typing import NamedTuple

import jax
import numpy as np

from fesem_jax.core.types import Params
from fesem_jax.training.one_client import Record


class Training(NamedTuple):
  """One local training of a client; some methods have two in a round.

  Attributes:
    loss: [T] float32 mean loss of each step's batch, before the step.
    gradient: [T] float32 L2 norm of its gradient.
    distance: [T] float32 L2 distance from the start, after the step.
    start: parameters that it started from.
    end: parameters after the last step, as the whole round computes them, where all
      clients train side by side; those of the steps above where that was not computed,
      for size, or where they are not finite.
    first_bad_step: the first step, from 1, after which a parameter is not finite; None
      if all are.
    difference: largest difference of the parameters after the steps above from `end`:
      0.0 if they are the same bit for bit. None where there is only one of the two.
  """

  loss: np.ndarray
  gradient: np.ndarray
  distance: np.ndarray
  start: Params
  end: Params
  first_bad_step: int | None
  difference: float | None


class Replay(NamedTuple):
  """The result of `replay`.

  Attributes:
    round: of the run.
    client: its name.
    arrived: False for a client that dropped out, or whose update did not arrive in this
      round (FedBuff): it did not train.
    trainings: in the order of the round.
    since: rounds done at the checkpoint that was started from; 0 is the start.
    same_records: whether the rounds that were run again, this one too, came to the
      losses (up to rounding) and clusters of `metrics.jsonl`; None where it has none.
    same_state: whether the state after the round is that of the checkpoint there, bit
      for bit; None where there is none.
  """

  round: int
  client: str
  arrived: bool
  trainings: list[Training]
  since: int
  same_records: bool | None
  same_state: bool | None


def training_of(again: Record, in_round: Params = None) -> Training:
  """A local training, and where it ended in the round, if known."""
  taken = int(np.asarray(again.taken))
  loss, gradient, distance, finite = np.asarray(again.steps)[:taken].T
  bad = np.flatnonzero(finite == 0)
  end, difference = again.last, None
  if in_round is not None and not len(bad):
    end = in_round
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(initial=0), again.last, end)
    difference = float(max(jax.tree.leaves(gaps), default=0.0))
  first = int(bad[0]) + 1 if len(bad) else None
  return Training(loss, gradient, distance, again.start, end, first, difference)
