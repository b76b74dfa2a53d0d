"""Wrapping of methods, and access to a method's state within its wrappers."""

from typing import Any

import jax

from fesem_jax.algorithms.common.centers import sizes_of
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.utils.errors import check


def inner(state: Any) -> Any:
  """The state of the method itself, with `centers`, `assignment` and `rounds`."""
  while 'method' in state._fields:
    state = state.method
  return state


def replaced(state: Any, **changes: Any) -> Any:
  """The state with changes to the state of the method itself."""
  if 'method' in state._fields:
    return state._replace(method=replaced(state.method, **changes))
  return state._replace(**changes)


def cohort_clusters(state: Any, cohort: Cohort) -> jax.Array:
  """[S] int32 cluster of each client of the cohort."""
  return tree.rows_of(inner(state).assignment, cohort)


def num_clusters(state: Any) -> int:
  """K."""
  return jax.tree.leaves(inner(state).centers)[0].shape[0]


def number_of(state: Any) -> jax.Array:
  """[] int32 number of the next round, counted from 1."""
  return inner(state).rounds + 1


def took_part(info: RoundInfo) -> jax.Array:
  """[S] bool: the round's clients whose update counted."""
  assert info.clusters is not None
  assert info.clusters.took_part is not None
  return info.clusters.took_part


def with_assignment(
  info: RoundInfo, before: jax.Array, after: jax.Array, count: int, data: FederatedData
) -> RoundInfo:
  """The report of a round after which clients are in other clusters [M]."""
  assert info.clusters is not None
  clusters = info.clusters._replace(
    assignment=after,
    sizes=sizes_of(after, count, data),
    moved=((before != after) & (data.sizes() > 0)).sum(),
  )
  return info._replace(clusters=clusters)


def check_wrappable(method: Algorithm, option: str) -> None:
  """Raises `UserError` unless a wrapper that an option asks for may wrap a method."""
  has_centers = method.with_centers is not None
  check(has_centers, f'{option}: needs a method with centers, such as fesem')
  sends = method.local.sends
  private = sends is not None and sends.privacy is not None
  check(not private, f'{option}: excludes dp, which adds no noise to its centers')


def wrap(method: Algorithm, step: Any, **changes: Any) -> Algorithm:
  """A method in a state that nests its own in `method`, with other functions."""

  def deployed(state, data):
    return method.deployed(state.method, data)

  def with_centers(state, centers, unchanged):
    assert method.with_centers is not None
    return state._replace(method=method.with_centers(state.method, centers, unchanged))

  def train(local, state, *args):
    assert method.train is not None
    return method.train(local, state.method, *args)

  def between(state, info):
    assert method.between is not None
    inner_state, info = method.between(state.method, info)
    return state._replace(method=inner_state), info

  functions = {
    'deployed': deployed,
    'with_centers': with_centers,
    'train': None if method.train is None else train,
    'between': None if method.between is None else between,
  }
  parts: dict[str, Any] = {**method._asdict(), **functions, **changes, 'step': step}
  return Algorithm(**parts)
