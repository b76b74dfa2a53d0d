"""Deployed models and reports of methods with K centers."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import offloading, tree
from fesem_jax.core.algorithm import ClientModels, Clusters, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.trained import Trained
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Range

MAX_CLUSTERS = 10_000  # Beyond any use: a center is kept for each from the start.
MaxClusters = Annotated[int, Range(0, MAX_CLUSTERS)]  # 0: as many as clients.


def deployed(state: Any, data: FederatedData) -> ClientModels:
  return ClientModels(state.centers, state.assignment)


def check_num_clusters(num_clusters: int, data: FederatedData) -> None:
  most = len(data.info.names)
  check(num_clusters <= most, f'num_clusters: more than the {most} clients; lower it')


def round_info(
  trained: Trained,
  num_clusters: int,
  value: jax.Array | None,
  before: jax.Array,
  after: jax.Array,
  data: FederatedData,
  objective_parts: tuple[jax.Array, jax.Array] | None = None,
) -> RoundInfo:
  """Report of a round of a clustered method, with Eq. 6 as its `value` [] float32."""
  clusters = Clusters(
    assignment=after,
    sizes=sizes_of(after, num_clusters, data),
    moved=((before != after) & (data.sizes() > 0)).sum(),
    objective=value,
    objective_parts=objective_parts,
    took_part=trained.took_part(),
  )
  return trained.info(clusters)


def sizes_of(
  assignment: jax.Array, num_clusters: int, data: FederatedData
) -> jax.Array:
  """[K] int32 clients of each cluster; K in `assignment` [M] is none."""
  members = jax.nn.one_hot(assignment, num_clusters, dtype=jnp.int32)
  return (members * (data.sizes() > 0)[:, None]).sum(axis=0)


def reassigned(clusters: Clusters, before: np.ndarray, after: Any) -> Clusters:
  """The report of a round whose clients `Algorithm.between` moved."""
  moved = after != before
  gained, lost = (
    np.bincount(r[moved], minlength=len(clusters.sizes)) for r in (after, before)
  )
  sizes = clusters.sizes + gained - lost
  return clusters._replace(assignment=after, sizes=sizes, moved=moved.sum())


def storage_for_models(
  state: Any, cohort: Cohort, client_state: str, mesh: Mesh
) -> Params:
  """[S, ...] memory to overwrite with the cohort's models, or None."""
  if cohort.everyone:
    return state.client_params
  if client_state == 'offloaded':  # Room alone: they start from centers.
    model = tree.unstack(state.centers, 0)
    return offloading.repeat(model, cohort.ids.shape[0], mesh)
  return None
