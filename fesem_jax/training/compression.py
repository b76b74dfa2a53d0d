"""Compression of what clients send: sparse changes, and changes of few bits."""

import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fesem_jax.core.sending import Sends
from fesem_jax.core.traffic import NUMBER
from fesem_jax.core.types import Params
from fesem_jax.data.expressions import build
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import PositiveFraction, Range, checked

# Numbers that share a scale in quantization.
_BUCKET = 512


def compression(text: str) -> Sends:
  """Builds compression of what clients send, for `local_training(sends=...)`.

    top_k(F)     the ceil(F P) largest of all P changes: 8 bytes each, value and place
    random_k(F)  ceil(F P) changes drawn anew in each round: 4 bytes each; without error
                 feedback, times P / k
    quantize(B)  each change rounded at random to B bits, about the largest of its 512
                 neighbors (QSGD, Alistarh et al. 2017): B bits and 4 bytes for each 512

  With error feedback (Seide et al. 2014; Karimireddy et al. 2019), a client of top_k or
  random_k adds the unsent part of a change to its next one.

  Args:
    text: e.g. 'top_k(0.01)' or 'top_k(0.01, error_feedback=False)'.
  """
  sends = build(text, KINDS, 'compress')
  check(len(sends) == 1, f'compress: {text!r:.30} is more than one')
  return sends[0]._replace(named=f'compress={text}')


@checked
def _top_k(share: PositiveFraction, error_feedback: bool = True) -> Sends:
  """Sends the largest changes of this share of the parameters."""
  return _sparse('top_k', share, error_feedback)


@checked
def _random_k(share: PositiveFraction, error_feedback: bool = True) -> Sends:
  """Sends changes of this share of the parameters, drawn anew in each round."""
  return _sparse('random_k', share, error_feedback)


def _sparse(kind: str, share: float, error_feedback: bool) -> Sends:
  def num_sent(size: int) -> int:
    return max(1, math.ceil(share * size - 1e-9 * size))

  def compress(key: jax.Array, start: Params, trained: Params) -> Params:
    change, unflatten = ravel_pytree(jax.tree.map(jnp.subtract, trained, start))
    k = num_sent(change.size)
    if kind == 'top_k':
      _, places = jax.lax.top_k(jnp.abs(change), k)
      sent = jnp.zeros_like(change).at[places].set(change[places])
    else:
      _, places = jax.lax.top_k(jax.random.bits(key, change.shape), k)
      scale = 1.0 if error_feedback else change.size / k
      sent = jnp.zeros_like(change).at[places].set(scale * change[places])
    return jax.tree.map(jnp.add, start, unflatten(sent))

  def num_bytes(size: int) -> float:
    values = NUMBER * num_sent(size)
    return 2 * values if kind == 'top_k' else values + 8

  return Sends(compress, num_bytes, None, 'compress', error_feedback)


@checked
def _quantize(bits: Annotated[int, Range(2, 16)]) -> Sends:
  """Sends changes with this number of bits, rounded at random."""
  levels = 2 ** (bits - 1) - 1  # On each side of 0.

  def compress(key: jax.Array, start: Params, trained: Params) -> Params:
    change, unflatten = ravel_pytree(jax.tree.map(jnp.subtract, trained, start))
    buckets = jnp.pad(change, (0, -change.size % _BUCKET)).reshape(-1, _BUCKET)
    scale = jnp.abs(buckets).max(axis=1, keepdims=True) / levels
    place = buckets / jnp.where(scale > 0, scale, 1.0)
    level = jnp.floor(place + jax.random.uniform(key, place.shape))
    sent = jnp.clip(level, -levels, levels) * scale
    return jax.tree.map(jnp.add, start, unflatten(sent.reshape(-1)[: change.size]))

  def num_bytes(size: int) -> float:
    return math.ceil(size * bits / 8) + NUMBER * math.ceil(size / _BUCKET)

  return Sends(compress, num_bytes, None, 'compress')


KINDS: dict[str, Callable[..., Sends]] = {
  'top_k': _top_k, 'random_k': _random_k, 'quantize': _quantize,
}  # fmt: skip
