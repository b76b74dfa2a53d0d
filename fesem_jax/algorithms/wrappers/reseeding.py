"""Moves centers without clients to the clients farthest from their own centers."""

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.wrapped import (
  check_wrappable,
  cohort_clusters,
  inner,
  num_clusters,
  replaced,
  took_part,
  with_assignment,
)
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server.comparison import ModelComparison, by_weights

_ALL = by_weights()


@recorded
def with_reseeding(method: Algorithm, comparison: ModelComparison = _ALL) -> Algorithm:
  """Moves a center without clients to the client farthest from its own center.

  Args:
    method: a method with centers.
    comparison: of models with centers, as the method makes it.

  Raises:
    UserError: on a method without centers.
  """
  check_wrappable(method, 'reseed_empty')

  def step(state, data, cohort, key):
    old, before = inner(state).centers, inner(state).assignment
    state, info = method.step(state, data, cohort, key)
    inner_state = inner(state)
    params = tree.rows_of(inner_state.client_params, cohort)
    centers, compared = tree.take(old, cohort_clusters(state, cohort)), params
    if comparison.align is not None:
      compared = comparison.align(params, centers, method.local.mesh)
    distance = tree.row_distances(compared, centers)
    distance = jnp.where(took_part(info), distance, -1.0)
    centers, assignment = reseed_empty_centers(
      inner_state.centers, inner_state.assignment, params, distance, cohort, data
    )
    unchanged = tree.row_distances(centers, inner_state.centers) == 0
    info = with_assignment(info, before, assignment, num_clusters(state), data)
    assert method.with_centers is not None
    state = method.with_centers(
      replaced(state, assignment=assignment), centers, unchanged
    )
    return state, info

  return method._replace(step=step)


def reseed_empty_centers(
  centers: Params,
  assignment: jax.Array,
  trained: Params,
  distance: jax.Array,
  cohort: Cohort,
  data: FederatedData,
) -> tuple[Params, jax.Array]:
  """Centers [K, ...] and assignment [M] once empty centers took the farthest clients.

  `distance` [S] float32 is negative for clients to leave alone. No cluster is emptied.
  """
  num_clusters = jax.tree.leaves(centers)[0].shape[0]
  exists = data.sizes() > 0
  sizes = jnp.bincount(jnp.where(exists, assignment, num_clusters), length=num_clusters)
  spare = sizes > (sizes == 0).sum()
  distance = jnp.where(spare[tree.rows_of(assignment, cohort)], distance, -1.0)
  _, farthest = jax.lax.top_k(distance, min(num_clusters, distance.shape[0]))
  # The first empty center takes the farthest client, the next one the next.
  turn = jnp.cumsum(sizes == 0) - 1
  row = farthest.at[turn].get(mode='clip')
  empty = (sizes == 0) & (distance[row] >= 0) & (turn < farthest.shape[0])
  joining = jnp.where(empty, jnp.asarray(cohort.ids)[row], assignment.shape[0])
  assignment = assignment.at[joining].set(jnp.arange(num_clusters), mode='drop')
  return tree.where(empty, tree.take(trained, row), centers), assignment
