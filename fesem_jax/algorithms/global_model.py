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


def deployed(state: Any) -> Deployed:
  """The `deployed` of a method whose clients all use `state.params`."""
  return Deployed(state.params, row=jnp.int32(0))


def train_and_average(
  local: LocalTraining,
  params: Params,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  weighting: str,
  **options: Any,
) -> tuple[Params, Trained]:
  """Trains the cohort from one model and takes the mean.

  Args:
    local: how clients train.
    params: [1, ...]; also the mean if no client's update counts.
    data: training split.
    cohort: S clients.
    key: key of this round.
    weighting: see `Trained.weights`.
    **options: see `train_cohort`.

  Returns:
    [1, ...] weighted mean of the local models, and what training reports.
  """

  def add(sums, trained, row, _):
    weights = trained.weights(weighting)
    return tree.add_rows(sums, trained.params, row, weights), None

  row = jnp.zeros(cohort.ids.shape, jnp.int32)
  trained = train_cohort(
      local, params, row, data, cohort, key,
      fold=add, sums=tree.no_sums(params), keep=False, **options,
  )  # fmt: skip
  return tree.mean_of(trained.sums, params), trained
