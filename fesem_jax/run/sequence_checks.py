"""Sequences that show a model the tokens that it predicts, or that are padded."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model
from fesem_jax.tasks import SEQUENCE
from fesem_jax.utils.notices import warn_once

_SOME = 1000  # Sequences that are looked at.
# A token that ends so many sequences, so many times, and begins few of them so.
_PADDED, _LEAST_PADDING = 0.1, 3


def warn(
  train: FederatedData, looks_ahead: Callable[[np.ndarray, np.ndarray], bool]
) -> None:
  """Says once what makes accuracies of next tokens other than they seem.

  `looks_ahead` tells of some sequences [B, S] if the model's outputs at a position that
  counts, of [B, S - 1] bool, depend on later tokens.
  """
  if train.task != SEQUENCE.name or len(train.example_shape) != 1:
    return
  x, y = (np.asarray(rows[:_SOME]) for rows in (train.x, train.y))
  told, later = y >= 0, y[:, :-1] >= 0
  if told.any() and (x == y)[told].all():
    warn_once(
      'y holds the tokens of x at the same positions, which a model only has to copy; '
      'give the next ones: y[:, :-1] = x[:, 1:], and -1 at the end.'
    )
  elif later.any() and (x[:, 1:] == y[:, :-1])[later].all():
    some = np.flatnonzero(later.any(axis=1))[:2]
    if looks_ahead(x[some], later[some]):
      warn_once(
        'The model sees the tokens that it predicts: its outputs at a position depend '
        'on later tokens; mask its attention, or pad its convolutions on the left.'
      )
  if y.shape[1] < 2 * _LEAST_PADDING:
    return
  token = np.bincount(np.maximum(y[:, -1], 0)).argmax()
  ends, begins = (
    (part == token).all(axis=1).mean()
    for part in (y[:, -_LEAST_PADDING:], y[:, :_LEAST_PADDING])
  )
  if ends > _PADDED + 2 * begins:
    warn_once(
      f'{100 * ends:.0f} % of the sequences end with token {token} at least '
      f'{_LEAST_PADDING} times; if it is padding, set y to -1 there: it counts in '
      'losses and accuracies.'
    )


def looks_ahead(model: Model, x: np.ndarray, counts: np.ndarray) -> bool:
  """Tells if outputs of a model for tokens [B, S] depend on later ones.

  Only positions [B, S - 1] that `counts` has are looked at: attention whose mask leaves
  nothing to padding is of all tokens there.
  """

  def shaken(p: jax.Array) -> jax.Array:  # Layers may start at zero.
    return p + 0.1 * jax.random.normal(jax.random.key(p.size), p.shape)

  @jax.jit
  def apart(x: jax.Array, other: jax.Array) -> jax.Array:
    params = jax.tree.map(shaken, model.init(jax.random.key(0)))
    one, two = model.apply(params, x)[:, :-1], model.apply(params, other)[:, :-1]
    apart = jnp.where(counts[:, :, None], jnp.abs(one - two), 0.0)
    return apart.max() > 1e-3 * jnp.abs(one).max()

  x = np.asarray(x, np.float32)
  other = x.copy()
  other[:, -1] = np.where(x[:, -1] == x[:, 0], x[:, -1] - 1, x[:, 0])
  return bool(apart(x, np.maximum(other, 0)))
