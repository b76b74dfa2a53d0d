"""Options of methods and of reclustering, as flags and `algorithms.build` take them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fesem_jax.algorithms.common.first_clusters import Clustering
from fesem_jax.algorithms.wrappers.reclustering import with_reclustering
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.server import comparison
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Index, checked

# Methods with the option of `reclustered`.
RECLUSTERED = ('fesem', 'fesem_ma', 'hypo_cluster')


def options(factory: Callable[..., Any]) -> dict[str, Any]:
  """The options of a method, its keyword-only arguments, and their defaults."""
  parameters = inspect.signature(factory).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@checked
def reclustered(
  method: Algorithm,
  local: LocalTraining,
  chosen: Mapping[str, Any],
  *,
  recluster_every: Index = 0,
) -> Algorithm:
  """A method of `chosen` options that clusters its clients again at intervals.

  Args:
    recluster_every: rounds between clusterings anew; 0: never.
  """
  if not recluster_every:
    return method
  client_state = chosen.get('client_state', 'stacked')
  stacked = client_state == 'stacked'
  check(stacked, f'client_state: recluster_every needs stacked; got {client_state}')
  compare = comparison.by_weights(statistics=local.model.statistics)
  clustering = Clustering(weighting=chosen['weighting'], comparison=compare)
  if 'cluster_on' in chosen:
    compare = comparison.build(chosen['cluster_on'], local.model)
    restarts = chosen['init_restarts']
    clustering = clustering._replace(comparison=compare, restarts=restarts)
  return with_reclustering(method, recluster_every, clustering)
