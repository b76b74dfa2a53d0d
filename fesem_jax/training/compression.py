"""Compression of what clients send: sparse changes, and changes of few bits.

Changes of all layers that are sent are one vector of P numbers.
"""

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fesem_jax.core.sending import Sends
from fesem_jax.core.traffic import NUMBER
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import UserError, check

KINDS = ('top_k', 'random_k', 'quantize')
FORMS = 'top_k:SHARE, random_k:SHARE or quantize:BITS'

# Numbers that share a scale in quantization.
_BUCKET = 512
_MOST_BITS = 16


def compression(text: str, *, error_feedback: bool = True) -> Sends:
  """Builds what clients send with compression, for `local_training(sends=...)`.

    'top_k:F'     the ceil(F P) largest changes: 8 bytes each, a value and its place
    'random_k:F'  ceil(F P) changes drawn anew in each round: 4 bytes each, and 8 for
                  the key that the places follow from; without error feedback, times
                  P / k, so that they are right on average
    'quantize:B'  each change rounded at random to a multiple of m / (2^(B-1) - 1),
                  where m is the largest of its 512 neighbors, right on average (QSGD,
                  Alistarh et al. 2017): B bits each, and 4 bytes for each m

  With error feedback (Seide et al. 2014; Karimireddy et al. 2019), a client of top_k or
  random_k adds what it has not sent to its next change; see
  `wrappers.with_error_feedback`, which `simulate` adds. Quantization needs none.

  Args:
    text: e.g. 'top_k:0.01'.
    error_feedback: whether a client of top_k or random_k adds what it has not sent to
      its next change.

  Returns:
    What clients send, as `local_training` takes it.

  Raises:
    UserError: if the text is none of these, or a number is out of range.
  """
  kind, _, number = text.partition(':')
  message = f'compress: must be {FORMS}; got {text!r:.20}'
  try:
    value = float(number)
  except ValueError as e:
    raise UserError(message) from e
  if kind == 'quantize':
    check(value in range(2, _MOST_BITS + 1), message)
    return _quantized(int(value), text)
  check(kind in KINDS and 0 < value <= 1, message)
  return _sparse(kind, value, error_feedback, text)


def _sparse(kind: str, share: float, error_feedback: bool, text: str) -> Sends:
  def kept(size: int) -> int:
    return max(1, math.ceil(share * size - 1e-9 * size))

  def compress(key: jax.Array, start: Params, trained: Params) -> Params:
    change, unflatten = ravel_pytree(jax.tree.map(jnp.subtract, trained, start))
    k = kept(change.size)
    if kind == 'top_k':
      _, places = jax.lax.top_k(jnp.abs(change), k)
      sent = jnp.zeros_like(change).at[places].set(change[places])
    else:
      _, places = jax.lax.top_k(jax.random.bits(key, change.shape), k)
      scale = 1.0 if error_feedback else change.size / k
      sent = jnp.zeros_like(change).at[places].set(scale * change[places])
    return jax.tree.map(jnp.add, start, unflatten(sent))

  def num_bytes(size: int) -> float:
    return 2 * NUMBER * kept(size) if kind == 'top_k' else NUMBER * kept(size) + 8

  return Sends(compress, num_bytes, None, _named(text), error_feedback)


def _quantized(bits: int, text: str) -> Sends:
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

  return Sends(compress, num_bytes, None, _named(text))


def _named(text: str) -> str:
  return f'compress={text}'
