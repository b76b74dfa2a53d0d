"""FedAvg within each cluster: clients train from their centers."""

from collections.abc import Callable
from typing import Any

import jax

from fesem_jax.algorithms.common.centers import deployed, round_info
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server import em
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Fold, Reduction, Trained
from fesem_jax.utils.errors import check


def check_everyone(cohort: Cohort, method: str) -> None:
  check(cohort.everyone, f'clients_per_round: must be 0 for {method}')


def train_clusters(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
) -> Trained:
  """Trains each client from its center; `sums` are `em.Sums` about the centers."""
  reduction = cluster_sums(starts.shared, weighting)
  return train_cohort(local, starts, data, cohort, key, reduction)


def train_and_average(
  local: LocalTraining,
  starts: ClientModels,
  before: jax.Array,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
) -> tuple[Params, Trained, RoundInfo]:
  """Trains all clients from their centers; returns means, `Trained` and the report."""
  old = starts.shared
  assert starts.choice is not None
  trained = train_clusters(local, starts, data, cohort, key, weighting)
  centers = mean_of(trained.sums.clients, old)
  value, count = trained.sums.objective(old, centers), starts.num_models()
  info = round_info(trained, count, value, before, starts.choice, data)
  return centers, trained, info


def step_of_fixed_clusters(local: LocalTraining) -> Callable[..., Any]:
  """The `step` of a method whose clusters stay as they are after the start."""

  def step(state, data, cohort, key):
    assignment, starts = state.assignment, deployed(state, data).of(cohort)
    trained = train_clusters(local, starts, data, cohort, key, 'by_examples')
    centers = mean_of(trained.sums.clients, state.centers)
    value, count = trained.sums.objective(state.centers, centers), starts.num_models()
    info = round_info(trained, count, value, assignment, assignment, data)
    return state._replace(centers=centers), info

  return step


def cluster_sums(centers: Params, weighting: str) -> Reduction:
  """Adds up models by the centers [K, ...] that clients start from; keeps none."""
  return Reduction(add_to_clusters(weighting), em.Sums.zeros(centers), keep=False)


def add_to_clusters(weighting: str) -> Fold:
  def fold(trained, starts, total):
    start, centers = starts.choice, starts.shared
    distance = tree.row_distances(trained.params, tree.take(centers, start))
    return None, total.add(trained, start, distance, weighting, centers)

  return fold
