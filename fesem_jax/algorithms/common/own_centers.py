"""Clients that train from the centers of their clusters: FedAvg in each cluster."""

import jax

from fesem_jax.clustering import em
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, FederatedData
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.reduction import Fold, Reduction
from fesem_jax.training.trained import Trained


def train_from_own(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
) -> Trained:
  """Trains each client from its center, and adds up the models of each center.

  Args:
    local: how clients train.
    starts: centers [K, ...], and the choice [S] of the cohort's clients.
    data: training split.
    cohort: S clients.
    key: of the round.
    weighting: of the clients in the sums; see `Trained.weights`.

  Returns:
    `Trained` without local models, whose `sums` are `em.Sums` about the centers.
  """
  sums = em.Sums.zeros(starts.shared)
  reduction = Reduction(add_to_own(weighting), sums, keep=False)
  return train_cohort(local, starts, data, cohort, key, reduction=reduction)


def add_to_own(weighting: str) -> Fold:
  """A fold that adds up models by the centers that clients start from."""

  def fold(trained, starts, total):
    own, centers = starts.choice, starts.shared
    distance = tree.row_distances(trained.params, tree.take(centers, own))
    return None, total.add(trained, own, distance, weighting, centers)

  return fold
