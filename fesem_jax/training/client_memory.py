"""Values that clients keep between rounds: residuals, statistics, optimizer states."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.extend.core import get_opaque_trace_state

from fesem_jax.core import tree
from fesem_jax.core.sending import Sends
from fesem_jax.core.types import Cohort, Params


class Memory:
  """Values that clients keep, while a round is traced; see `remembered`."""

  def __init__(self, values: dict[str, Any]):
    self.values = values  # name -> [M, ...]
    self.uses = dict.fromkeys(values, 0)  # how often a client puts a new value there
    self._traced: list[dict[str, int]] = []  # the same, each time a client is traced
    self._trace = get_opaque_trace_state(convention='flax')

  def collect(
    self,
    state: Any,
    new_state: Any,
    old: Mapping[str, Any],
    new: Mapping[str, list[Any]],
  ) -> Any:
    """The state that a method gives a client, and the last value of each part."""
    self._traced.append({name: len(new.get(name, ())) for name in old})
    last = {name: [value, *new.get(name, ())][-1] for name, value in old.items()}
    return None if state is None else new_state, last

  def of(self, cohort: Cohort) -> dict[str, Any]:
    """Values of a cohort, which need not be the round's: a method may train others."""
    return tree.rows_of(self.values, cohort)

  def store(self, cohort: Cohort, state_and_parts: tuple[Any, dict[str, Any]]) -> Any:
    """The states of `collect` for the method; `values` takes the rest."""
    same = self._trace == get_opaque_trace_state(convention='flax')
    if same:  # Rows cannot leave a branch or a loop.
      self.values = tree.with_rows(self.values, cohort, state_and_parts[1])
    for name in self.uses:
      most = max((counts[name] for counts in self._traced), default=0)
      self.uses[name] += most if same else 2 * most
    self._traced.clear()
    return state_and_parts[0]


# Those of the round that is traced. Not an argument: methods would have to hand them on
# to each training and their new values back, and one that did not would lose them.
OF_ROUND: contextvars.ContextVar[Memory | None] = contextvars.ContextVar(
  'memory', default=None
)


@contextlib.contextmanager
def remembered(values: dict[str, Any]) -> Iterator[Memory]:
  """Within the block, clients keep `values`, name -> [M, ...]; it yields the memory."""
  memory = Memory(values)
  token = OF_ROUND.set(memory)
  try:
    yield memory
  finally:
    OF_ROUND.reset(token)


def with_residual(sends: Sends, residual: Params, residuals: list[Params]) -> Sends:
  """The `Sends` of a client that adds its `residual`; `residuals` takes the new one."""
  compress, private = sends.transform, sends.before_residual
  assert compress is not None

  def transform(key: jax.Array, start: Params, trained: Params) -> Params:
    is_part = isinstance(trained, dict) and trained.keys() != residual.keys()
    flat = flatten_dict(residual) if is_part else {}
    unsent = {path: flat[path] for path in trained} if is_part else residual
    if private is not None:
      trained = private(key, start, trained)
    whole = jax.tree.map(jnp.add, trained, unsent)
    sent = compress(key, start, whole)
    new = jax.tree.map(jnp.subtract, whole, sent)
    residuals.append(unflatten_dict(flat | new) if is_part else new)
    return sent

  return sends._replace(transform=transform, before_residual=None)
