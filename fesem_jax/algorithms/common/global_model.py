"""What all methods with one global model share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.aggregation import server_optimizers
from fesem_jax.aggregation.robust import Aggregate
from fesem_jax.aggregation.server_optimizers import ServerOptimizer
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, FederatedData, Params
from fesem_jax.training.cohort import Trained, train_cohort


class GlobalState(NamedTuple):
  """State of a method with one global model."""

  params: Params  # [1, ...]
  server: Any = ()  # of the server optimizer


def init(
  local: LocalTraining, optimizer: ServerOptimizer = None
) -> Callable[[jax.Array, FederatedData], GlobalState]:
  """The `init` of a method that starts from one random model."""

  def init(key, data):
    del data
    params = tree.expand(local.model.init(key))
    return GlobalState(params, server_optimizers.init(optimizer, params))

  return init


def deployed(state: Any, data: FederatedData) -> ClientModels:
  """The `deployed` of a method whose clients all use `state.params`."""
  del data
  return ClientModels(state.params)


def train(
  local: LocalTraining,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  **options: Any,
) -> Trained:
  """Trains the cohort from `state.params` [1, ...]; options: see `train_cohort`."""
  starts = ClientModels(state.params)
  return train_cohort(local, starts, data, cohort, key, **options)


def train_and_average(
  local: LocalTraining,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
  train: Callable[..., Trained] = train,
  optimizer: ServerOptimizer = None,
  aggregate: Aggregate | None = None,
) -> tuple[GlobalState, Trained]:
  """Trains the cohort from one model and moves it to, or towards, their mean.

  Args:
    local: how clients train.
    state: a `GlobalState`; it stays as it is if no client's update counts.
    data: training split.
    cohort: S clients.
    key: key of this round.
    weighting: see `Trained.weights`.
    train: see `Algorithm`.
    optimizer: see `ServerOptimizer`.
    aggregate: stands in for the mean, and weighs clients alike; it needs the models of
      the whole cohort, which the mean does not.

  Returns:
    The new state, and what training reports.
  """
  if aggregate is not None:
    trained = train(local, state, data, cohort, key)
    counts, of_all = trained.took_part(), jnp.zeros(trained.ids.shape, jnp.int32)
    middle = aggregate(trained.params, of_all, counts, state.params, local.mesh)
    params, of_server = server_optimizers.move(
      optimizer, state.server, state.params, middle, counts.any()[None]
    )
    return GlobalState(params, of_server), trained

  trained = train(local, state, data, cohort, key, mean_by=weighting, keep=False)
  params, of_server = server_optimizers.step(
    optimizer, state.server, state.params, trained.sums
  )
  return GlobalState(params, of_server), trained
