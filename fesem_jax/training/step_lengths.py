"""Length of the sum of local steps along a constant gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.training.batch_losses import descend
from fesem_jax.training.plain_sgd import is_linear
from fesem_jax.utils.errors import check

# Steps that are tried before a run; momentum shows from the second on.
_TRIED = 3


def check_sums_of_gradients(local: LocalTraining) -> None:
  """Raises `UserError` unless the local optimizer only adds up a round's gradients."""
  begins = not local.keep_optimizer_state
  check(begins, 'keep_optimizer_state: not defined for this method; leave it out')
  like = jax.eval_shape(local.model.init, jax.random.key(0))
  arguments = like, jax.eval_shape(local.optimizer.init, like)
  # Without the parameters, of which no update may depend.
  sums = is_linear(local.optimizer.update, *arguments) and _treats_all_alike(local)
  check(sums, 'optimizer: must be SGD with or without momentum, and nothing else')


def lengths(local: LocalTraining, most: int) -> jax.Array:
  """[most + 1] float32: how far 0, 1, ... local steps lead along a gradient of 1."""
  return jax.tree.leaves(_lengths_of_layers(local, most))[0]


def _lengths_of_layers(local: LocalTraining, most: int) -> Params:
  """`lengths` of each array of the model, as one of its numbers tells."""
  shapes = jax.eval_shape(local.model.init, jax.random.key(0))
  # Of as many axes: an optimizer may treat biases and kernels differently.
  one = jax.tree.map(lambda x: jnp.ones((1,) * len(x.shape), x.dtype), shapes)
  zero = jax.tree.map(jnp.zeros_like, one)

  def step(carry: Any, number: jax.Array) -> Any:
    moved, state = carry
    rate = local.rate_of_step(number, None)
    carry = descend(local.optimizer, one, state, moved, rate)
    return carry, carry[0]

  first = zero, local.optimizer.init(zero)
  _, moved = jax.lax.scan(step, first, jnp.arange(most, dtype=jnp.int32))

  def from_start(x: jax.Array) -> jax.Array:
    return jnp.pad(-x.reshape(most), (1, 0))

  return jax.tree.map(from_start, moved)


def _treats_all_alike(local: LocalTraining) -> bool:
  moved = np.stack(
    jax.tree.leaves(jax.jit(lambda: _lengths_of_layers(local, _TRIED))())
  )
  return bool((moved == moved[0]).all() and (np.diff(moved[0]) > 0).any())
