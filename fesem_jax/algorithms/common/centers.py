"""What the methods with K centers share: what they report, and empty centers."""

import jax
import jax.numpy as jnp

from fesem_jax.core import tree
from fesem_jax.core.algorithm import Clusters, RoundInfo
from fesem_jax.core.types import Cohort, FederatedData, Params
from fesem_jax.training.cohort import Trained
from fesem_jax.utils.errors import UserError


def check_num_clusters(num_clusters: int, data: FederatedData) -> None:
  """Raises `UserError` if there are more clusters than clients."""
  if num_clusters > len(data.info.names):
    raise UserError(
      f'`num_clusters={num_clusters}` is more than the {len(data.info.names)} clients; '
      'lower it or raise `num_clients`.'
    )


def round_info(
  trained: Trained,
  num_clusters: int,
  value: jax.Array,
  before: jax.Array,
  after: jax.Array,
  data: FederatedData,
  objective_parts: tuple[jax.Array, jax.Array] | None = None,
) -> RoundInfo:
  """Sums up a round of a clustered method.

  Args:
    trained: the cohort.
    num_clusters: K.
    value: [] float32 Eq. 6 at the end of the round.
    before: [M] int32 assignment of all clients before the round.
    after: [M] int32 assignment after it.
    data: training split; clients without examples are padding.
    objective_parts: see `Clusters`.
  """
  exists = data.sizes() > 0
  members = jax.nn.one_hot(after, num_clusters, dtype=jnp.int32)
  clusters = Clusters(
    assignment=after,
    sizes=(members * exists[:, None]).sum(axis=0),
    moved=((before != after) & exists).sum(),
    objective=value,
    objective_parts=objective_parts,
  )
  return trained.info(clusters)


def reseed_empty_centers(
  centers: Params,
  assignment: jax.Array,
  trained: Params,
  distance: jax.Array,
  cohort: Cohort,
  data: FederatedData,
) -> tuple[Params, jax.Array]:
  """Moves centers without clients to the clients farthest from their own centers.

  A client is left where it is if that could leave its own cluster empty. The centers
  that lose a client keep what it gave to their mean until the next round.

  Args:
    centers: [K, ...].
    assignment: [M] int32 of all clients.
    trained: [S, ...] models of the cohort.
    distance: [S] float32 of each to its center; negative for clients to leave alone.
    cohort: S clients.
    data: training split; clients without examples are padding.

  Returns:
    centers [K, ...], and the assignment [M], where those clients have joined them.
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
