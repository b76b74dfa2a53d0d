"""Options of methods and of what wraps them, as flags and `algorithms.build` take them.

A wrapper is added to a method where its option is not 0.
"""

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


def _wrappers(
  *,
  recluster_every: Index = 0,
  reseed_empty: bool = False,
) -> None:
  """Options of wrappers, with the values that add none."""


def options(factory: Callable[..., Any]) -> dict[str, Any]:
  """The options of a method, its keyword-only arguments, and their defaults."""
  parameters = inspect.signature(factory).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


FESEM_WRAPPERS = options(_wrappers)
WRAPPERS: Mapping[str, Mapping[str, Any]] = {
  'fesem': FESEM_WRAPPERS,
  'fesem_ma': FESEM_WRAPPERS,
  'hypo_cluster': {'recluster_every': 0},
}


def wrapped(
  method: Algorithm, local: LocalTraining, own: Mapping[str, Any]
) -> Algorithm:
  """A method with the wrappers that its options ask for; `own` are all its options.

  Raises `UserError` on an option out of range, or one that excludes another.
  """
  of_wrappers = {name: value for name, value in own.items() if name in FESEM_WRAPPERS}
  ranges.check_arguments(_wrappers, of_wrappers)
  client_state = own.get('client_state', 'stacked')
  for option in ('reseed_empty', 'recluster_every'):
    stacked = not of_wrappers.get(option) or client_state == 'stacked'
    check(stacked, f'client_state: {option} needs stacked; got {client_state}')
  compare = comparison.by_weights(statistics=local.model.statistics)
  if 'cluster_on' in own:
    compare = comparison.build(own['cluster_on'], local.model)
  if of_wrappers.get('reseed_empty'):
    method = with_reseeding(method, compare)
  if of_wrappers.get('recluster_every'):
    clustering = Clustering(weighting=own['weighting'], comparison=compare)
    if 'cluster_on' in own:
      clustering = clustering._replace(restarts=own['init_restarts'])
    method = with_reclustering(method, of_wrappers['recluster_every'], clustering)
  return method
