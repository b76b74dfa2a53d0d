"""Options of methods and wrappers, as flags and `algorithms.build` take them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fesem_jax.algorithms.common.first_clusters import Clustering
from fesem_jax.algorithms.wrappers.reclustering import with_reclustering
from fesem_jax.algorithms.wrappers.reseeding import with_reseeding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.server import comparison
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Index


def wrappers(*, recluster_every: Index = 0, reseed_empty: bool = False) -> None:
  """Options of wrappers, with the values that add none.

  Args:
    recluster_every: rounds between clusterings anew; 0: never.
    reseed_empty: move a center without clients to the client farthest from its own.
  """


def options(factory: Callable[..., Any]) -> dict[str, Any]:
  """The options of a method, its keyword-only arguments, and their defaults."""
  parameters = inspect.signature(factory).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


FESEM_WRAPPERS = options(wrappers)
WRAPPERS: Mapping[str, Mapping[str, Any]] = {
  'fesem': FESEM_WRAPPERS,
  'fesem_ma': FESEM_WRAPPERS,
  'hypo_cluster': {'recluster_every': 0},
}


def wrapped(
  method: Algorithm, local: LocalTraining, options: Mapping[str, Any]
) -> Algorithm:
  """The method in the wrappers whose options are not 0."""
  wrapper_options = {n: value for n, value in options.items() if n in FESEM_WRAPPERS}
  ranges.check_arguments(wrappers, wrapper_options)
  client_state = options.get('client_state', 'stacked')
  for option in ('reseed_empty', 'recluster_every'):
    stacked = not wrapper_options.get(option) or client_state == 'stacked'
    check(stacked, f'client_state: {option} needs stacked; got {client_state}')
  compare = comparison.by_weights(statistics=local.model.statistics)
  if 'cluster_on' in options:
    compare = comparison.build(options['cluster_on'], local.model)
  if wrapper_options.get('reseed_empty'):
    method = with_reseeding(method, compare)
  if wrapper_options.get('recluster_every'):
    clustering = Clustering(weighting=options['weighting'], comparison=compare)
    if 'cluster_on' in options:
      clustering = clustering._replace(restarts=options['init_restarts'])
    method = with_reclustering(method, wrapper_options['recluster_every'], clustering)
  return method
