"""Values that clients keep between rounds: residuals, statistics, optimizers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.algorithms.common import client_models
from fesem_jax.algorithms.common.wrapped import wrap
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.traffic import one_model
from fesem_jax.core.types import Params
from fesem_jax.training.client_memory import remembered
from fesem_jax.utils.errors import check


class ClientMemoryState(NamedTuple):
  method: Any  # of the wrapped method
  memory: dict[str, Any]  # name -> [M, ...]

  @property
  def residuals(self) -> Params:
    return self.memory['residual']


def kept_parts(local: LocalTraining) -> tuple[str, ...]:
  is_kept = {
    'residual': local.sends is not None and local.sends.residual,
    'statistics': bool(local.unsent),
    'optimizer': local.keep_optimizer_state,
  }
  return tuple(name for name, enabled in is_kept.items() if enabled)


@recorded
def with_client_memory(method: Algorithm, parts: Sequence[str] = ()) -> Algorithm:
  """Lets each client of a method keep values from round to round.

    residual    e, what it has not sent (error feedback, Karimireddy et al. 2019):
                v <- P(w - s) + e;  sent <- C(v);  e <- v - C(v), of w trained from s
                with compression C after privacy P
    statistics  those of its batches, which are not sent then
    optimizer   the state of the local optimizer, which is otherwise reset

  A client that is not drawn, drops out or fails keeps what it has.

  Args:
    method: one that trains a client once in a round.
    parts: names of what is kept; by default as `local_training` was asked for it.

  Raises:
    UserError: when it starts, on a method that cannot use one of them.
  """
  local = method.local
  parts = parts or kept_parts(local)

  def init(key, data):
    first = {name: _FIRST[name](local) for name in parts}
    memory = client_models.repeat(local, first, data.num_clients, 'stacked')
    return ClientMemoryState(method.init(key, data), memory)

  def step(state, data, cohort, key):
    with remembered(state.memory) as memory:
      inner, info = method.step(state.method, data, cohort, key)
    _check_uses(memory.uses)
    if memory.uses.get('statistics') == 0:
      before = jax.eval_shape(method.deployed, inner, data)
      sent = _with_personal(before, state.memory['statistics']) is before
      check(sent, f'batch_stats: local {_UNDEFINED}; give average')
    return ClientMemoryState(inner, memory.values), info

  def deployed(state, data):
    used = method.deployed(state.method, data)
    if 'statistics' not in state.memory:
      return used
    return _with_personal(used, state.memory['statistics'])

  sent = method.traffic or one_model(local)
  if sent.inputs is not None:
    inputs = sent.inputs
    sent = sent._replace(inputs=lambda state: inputs(state.method))
  unseen_models = method.unseen_models
  changes: dict[str, Any] = {'traffic': sent, 'deployed': deployed}
  if method.with_centers is None:
    changes['with_centers'] = None
  if unseen_models is not None:
    changes['unseen_models'] = lambda state, data: unseen_models(state.method, data)
  # It is done: `simulate` adds none.
  sends = local.sends and local.sends._replace(residual=False)
  changes['local'] = local._replace(
    sends=sends, batch_stats='average', keep_optimizer_state=False
  )
  return wrap(method, step, init=init, **changes)


def _zeros(local: LocalTraining) -> Params:
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)


def _first_statistics(local: LocalTraining) -> Params:
  params = flatten_dict(local.model.init(jax.random.key(0)), sep='/')
  return {path: params[path] for path in local.model.statistics}


def _first_optimizer_state(local: LocalTraining) -> Any:
  """A state, which is not used before the client has trained once."""
  return local.optimizer.init(_zeros(local)), jnp.bool_(False)


_FIRST = {
  'residual': _zeros,
  'statistics': _first_statistics,
  'optimizer': _first_optimizer_state,
}


def _with_personal(
  used: ClientModels, statistics: dict[str, jax.Array]
) -> ClientModels:
  """Parameters that clients deploy with statistics of their own, path -> [M, ...]."""
  shared = flatten_dict(used.shared, sep='/') if used.shared is not None else {}
  personal = {path for path in statistics if shared.get(path) is not None}
  if not personal:
    return used
  rest = {path: None if path in personal else x for path, x in shared.items()}
  replacement = {
    path: statistics[path] if path in personal else None for path in shared
  }
  merged = tree.merge(used.personal, unflatten_dict(replacement, sep='/'))
  return used._replace(shared=unflatten_dict(rest, sep='/'), personal=merged)


# Of a method whose clients send several models in a round, or train several.
_UNDEFINED = 'is not defined for this method'


def _check_uses(uses: dict[str, int]) -> None:
  """Raises `UserError` if a client did not put each value there once in a round."""
  once = uses.get('residual', 0) <= 1
  check(once, f'error_feedback: {_UNDEFINED}; give error_feedback=False')
  once = uses.get('statistics', 0) <= 1
  check(once, f'batch_stats: local {_UNDEFINED}; give average')
  once = uses.get('optimizer', 1) == 1
  check(once, f'keep_optimizer_state: {_UNDEFINED}; leave it out')
