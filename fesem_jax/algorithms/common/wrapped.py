"""Wrapping of methods, and access to a method's state within its wrappers."""

from typing import Any

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.utils.errors import check


def inner(state: Any) -> Any:
  """The state of the method itself, with `centers`, `assignment` and `rounds`."""
  while 'method' in state._fields:
    state = state.method
  return state


def replaced(state: Any, **changes: Any) -> Any:
  if 'method' in state._fields:
    return state._replace(method=replaced(state.method, **changes))
  return state._replace(**changes)


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
