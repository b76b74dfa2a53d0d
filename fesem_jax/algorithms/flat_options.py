"""Options of methods by one name each, as flags and `algorithms.build` take them.

A method takes values, such as `MStep`, whose fields are options; and wrappers are added
to it where their option is not 0.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fesem_jax.aggregation.robust import Aggregation
from fesem_jax.algorithms.common.cluster_start import ClusterStart
from fesem_jax.algorithms.common.first_clusters import Clustering
from fesem_jax.algorithms.common.kept_models import needs_stack
from fesem_jax.algorithms.common.penalty import Penalty
from fesem_jax.algorithms.common.random_centers import RandomCenters
from fesem_jax.algorithms.wrappers.absent_clients import with_late_joins, with_max_age
from fesem_jax.algorithms.wrappers.loss_checks import with_loss_checks
from fesem_jax.algorithms.wrappers.reclustering import with_reclustering
from fesem_jax.algorithms.wrappers.reseeding import with_reseeding
from fesem_jax.clustering import comparison
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.errors import UserError, argument, check_at_least

Factory = Callable[..., Algorithm]

# Fields whose option has another name; all others have that of the field.
_NAMES = {
  (Penalty, 'weighting'): 'prox_weighting',
  (Aggregation, 'rule'): 'aggregation',
} | {
  (start, field.name): f'init_{field.name}'
  for start in (ClusterStart, RandomCenters)
  for field in dataclasses.fields(start)
}

# Options of wrappers, with the values that add none.
_RECLUSTERING = {'recluster_every': 0}
FESEM_WRAPPERS: Mapping[str, Any] = {
  'loss_check_every': 0,
  **_RECLUSTERING,
  'reseed_empty': False,
  'max_age': 0,
  'late_joins': False,
}
WRAPPERS: Mapping[str, Mapping[str, Any]] = {
  'fesem': FESEM_WRAPPERS,
  'fesem_ma': FESEM_WRAPPERS,
  'hypo_cluster': _RECLUSTERING,
}


def options(factory: Factory) -> dict[str, Any]:
  """The options of a method's keyword-only arguments, and their defaults."""
  found: dict[str, Any] = {}
  for parameter in inspect.signature(factory).parameters.values():
    if parameter.kind is parameter.KEYWORD_ONLY:
      found |= _flat(parameter.name, parameter.default)
  return found


def arguments(factory: Factory, chosen: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments of a method that some of its options make.

  Raises `UserError` on an option that a value does not allow.
  """
  found = {}
  for parameter in inspect.signature(factory).parameters.values():
    if parameter.kind is parameter.KEYWORD_ONLY:
      own = _flat(parameter.name, parameter.default)
      if own.keys() & chosen.keys():
        found[parameter.name] = _made(parameter.name, parameter.default, chosen)
  return found


def wrapped(
  method: Algorithm, local: LocalTraining, own: Mapping[str, Any]
) -> Algorithm:
  """A method with the wrappers that its options ask for; `own` are all its options.

  Raises `UserError` on an option out of range, or one that excludes another.
  """
  asked = {name: value for name, value in own.items() if name in FESEM_WRAPPERS}
  check_at_least(0, **asked)
  client_state = own.get('client_state', 'stacked')
  for option in ('reseed_empty', 'recluster_every'):
    if asked.get(option) and client_state != 'stacked':
      raise needs_stack(option, client_state)
  compare = comparison.by_weights()
  if 'cluster_on' in own:
    compare = comparison.build(own['cluster_on'], local.model)
  if asked.get('reseed_empty'):
    method = with_reseeding(method, compare)
  if asked.get('loss_check_every'):
    method = with_loss_checks(method, asked['loss_check_every'])
  if asked.get('recluster_every'):
    clustering = Clustering(weighting=own['weighting'])
    if 'cluster_on' in own:
      clustering = clustering._replace(
        restarts=own['init_restarts'],
        seeding=own['init_seeding'],
        comparison=compare,
      )
    method = with_reclustering(method, asked['recluster_every'], clustering)
  if asked.get('max_age'):
    method = with_max_age(method, asked['max_age'])
  if asked.get('late_joins'):
    first = own['init_clients']
    if 0 < first < own['num_clusters']:
      raise UserError(
        f'{argument("init_clients", first)} with `late_joins` is too few for '
        f'{argument("num_clusters", own["num_clusters"])}; give one client for each '
        'cluster, at least.'
      )
    method = with_late_joins(method, first)
  return method


def _flat(name: str, default: Any) -> dict[str, Any]:
  """Options of an argument, or of the fields of its value."""
  if not dataclasses.is_dataclass(default):
    return {name: default}
  found: dict[str, Any] = {}
  for field in dataclasses.fields(default):
    found |= _flat(_name(default, field.name), getattr(default, field.name))
  return found


def _made(name: str, default: Any, chosen: Mapping[str, Any]) -> Any:
  """The value that `_flat` took apart, with the chosen options."""
  if not dataclasses.is_dataclass(default) or isinstance(default, type):
    return chosen.get(name, default)
  fields = {
    field.name: _made(_name(default, field.name), getattr(default, field.name), chosen)
    for field in dataclasses.fields(default)
  }
  return dataclasses.replace(default, **fields)


def _name(value: Any, field: str) -> str:
  return _NAMES.get((type(value), field), field)
