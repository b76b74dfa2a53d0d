"""Moves centers without clients to the clients farthest from their own centers."""

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import sizes_of
from fesem_jax.algorithms.common.wrapped import inner, replaced
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort, Params


def with_reseeding(method: Algorithm) -> Algorithm:
  """Moves a center without clients to the client farthest from its own center."""

  def step(state, data, cohort, key):
    old, before = inner(state).centers, inner(state).assignment
    state, info = method.step(state, data, cohort, key)
    new, clusters = inner(state), info.clusters
    assert clusters is not None
    assert clusters.took_part is not None
    assert method.with_centers is not None
    params = tree.rows_of(new.client_params, cohort)
    centers = tree.take(old, tree.rows_of(new.assignment, cohort))
    distance = tree.row_distances(params, centers)
    distance = jnp.where(clusters.took_part, distance, -1.0)
    centers, assignment = reseed_empty_centers(
      new.centers, new.assignment, params, distance, cohort, data
    )
    unchanged = tree.row_distances(centers, new.centers) == 0
    sizes = sizes_of(assignment, len(clusters.sizes), data)
    moved = ((before != assignment) & (data.sizes() > 0)).sum()
    clusters = clusters._replace(assignment=assignment, sizes=sizes, moved=moved)
    state = replaced(state, assignment=assignment)
    state = method.with_centers(state, centers, unchanged)
    return state, info._replace(clusters=clusters)

  return method._replace(step=step)


def reseed_empty_centers(
  centers: Params,
  assignment: jax.Array,
  trained: Params,
  distance: jax.Array,
  cohort: Cohort,
  data: FederatedData,
) -> tuple[Params, jax.Array]:
  """Centers and assignment, empty ones at the clients of most `distance` >= 0."""
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
