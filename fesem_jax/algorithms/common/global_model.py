"""Parts that all methods with one global model share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer
from fesem_jax.server.robust import Aggregate
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction, Trained, mean_of_models


class GlobalState(NamedTuple):
  params: Params  # [1, ...]
  server: Any = ()  # of the server optimizer


def init(
  local: LocalTraining, optimizer: ServerOptimizer = None
) -> Callable[[jax.Array, FederatedData], GlobalState]:
  def init(key, data):
    params = tree.expand(local.model.init(key))
    return GlobalState(params, server_optimizers.init(optimizer, params, key))

  return init


def deployed(state: Any, data: FederatedData) -> ClientModels:
  return ClientModels(state.params)


class Averaging(NamedTuple):
  """The server's mean of its clients' models, and its step."""

  weighting: str = 'by_examples'  # of clients in the mean; see `Trained.weights`
  # Moves the model along their mean change; None takes the mean.
  optimizer: ServerOptimizer = None
  aggregation: Aggregate | None = None  # in place of the mean


def train(
  local: LocalTraining,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  reduction: Reduction,
  **options: Any,
) -> Trained:
  """Trains the cohort from `state.params` [1, ...]; see `train_cohort`."""
  starts = ClientModels(state.params)
  return train_cohort(local, starts, data, cohort, key, reduction, **options)


def train_and_average(
  local: LocalTraining,
  state: Any,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  averaging: Averaging,
  train: Callable[..., Trained] = train,
) -> tuple[GlobalState, Trained]:
  """Trains the cohort from one model, which moves to their mean, or toward it."""
  aggregation, old = averaging.aggregation, state.params
  is_mean = aggregation is None
  reduction = mean_of_models(averaging.weighting, old) if is_mean else Reduction()
  trained = train(local, state, data, cohort, key, reduction)
  if aggregation is None:
    means, any_client = mean_of(trained.sums, old), trained.sums.weight > 0
  else:
    counts, cluster = trained.took_part(), jnp.zeros(trained.ids.shape, jnp.int32)
    means = aggregation(trained.params, cluster, counts, old, local.mesh)
    any_client = counts.any()[None]
  if averaging.optimizer is None:
    return GlobalState(means, state.server), trained
  moved = server_optimizers.move(
    averaging.optimizer, state.server, old, means, any_client
  )
  return GlobalState(*moved), trained
