"""What all methods with one global model share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import tree
from fesem_jax.base import Cohort, Deployed, FederatedData, Params
from fesem_jax.local import LocalTraining


class GlobalState(NamedTuple):
  """State of a method with one global model."""

  params: Params  # [1, ...]


def init(local: LocalTraining) -> Callable[[jax.Array, FederatedData], GlobalState]:
  """The `init` of a method that starts from one random model."""
  return lambda key, data: GlobalState(tree.expand(local.model.init(key)))


def deployed(state: Any) -> Deployed:
  """The `deployed` of a method whose clients all use `state.params`."""
  return Deployed(state.params, row=jnp.int32(0))


def row_of_all(cohort: Cohort) -> jax.Array:
  """[S] int32: every client starts from row 0."""
  return jnp.zeros(cohort.ids.shape, jnp.int32)


def mean(stack: Params, weights: jax.Array, empty: Params) -> Params:
  """[1, ...] weighted mean of rows [S, ...]; `empty` if all weights are 0."""
  everyone = jnp.zeros(weights.shape, jnp.int32)
  return tree.weighted_mean(stack, everyone, weights, empty)
