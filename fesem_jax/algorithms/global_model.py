"""What all methods with one global model share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import tree
from fesem_jax.base import Cohort, Deployed, FederatedData, Params
from fesem_jax.local import LocalTraining, Trained, train_cohort


class GlobalState(NamedTuple):
  """State of a method with one global model."""

  params: Params  # [1, ...]


def init(local: LocalTraining) -> Callable[[jax.Array, FederatedData], GlobalState]:
  """The `init` of a method that starts from one random model."""
  return lambda key, data: GlobalState(tree.expand(local.model.init(key)))


def deployed(state: Any, data: FederatedData) -> Deployed:
  """The `deployed` of a method whose clients all use `state.params`."""
  del data
  return Deployed(state.params, row=jnp.int32(0))


def train(
  local: LocalTraining,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  **options: Any,
) -> Trained:
  """Trains the cohort from `state.params` [1, ...]; options: see `train_cohort`."""
  row = jnp.zeros(cohort.ids.shape, jnp.int32)
  return train_cohort(local, state.params, row, data, cohort, key, **options)


def train_and_average(
  local: LocalTraining,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
  train: Callable[..., Trained] = train,
) -> tuple[Params, Trained]:
  """Trains the cohort from one model and takes the mean.

  Args:
    local: how clients train.
    state: its `params` [1, ...] are also the mean if no client's update counts.
    data: training split.
    cohort: S clients.
    key: key of this round.
    weighting: see `Trained.weights`.
    train: see `Algorithm`.

  Returns:
    [1, ...] weighted mean of the local models, and what training reports.
  """

  def add(sums, trained, row, start):
    weights = trained.weights(weighting)
    return tree.add_rows(sums, trained.params, row, weights, start), None

  sums = tree.no_sums(state.params)
  trained = train(local, state, data, cohort, key, fold=add, sums=sums, keep=False)
  return tree.mean_of(trained.sums, state.params), trained
