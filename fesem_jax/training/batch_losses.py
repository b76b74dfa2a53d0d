"""The loss of a client's batch, as a local step sees it, and steps along gradients."""

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import prng_streams
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Model, Params
from fesem_jax.utils.errors import UserError


def weighted_loss(
  model: Model,
  params: Params,
  x: jax.Array,
  y: jax.Array,
  weights: jax.Array,
  factors: jax.Array | None = None,
) -> jax.Array:
  """[] float32: mean loss of a batch over the examples of weight 1.

  x and y are [B, ...], and `weights` [B] float32 are 1 or 0. `factors` [B] float32
  multiply the losses, over whose number the mean is still taken; None if all are 1.
  Raises `UserError` like `losses_of`.
  """
  losses = losses_of(model, params, x, y)
  for factor in jax.tree.leaves(factors):  # One, or none.
    losses = factor * losses
  return jnp.where(weights > 0, losses, 0.0).sum() / jnp.maximum(weights.sum(), 1.0)


def losses_of(model: Model, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
  """[B] float32: the loss of each example of a batch.

  Raises:
    UserError: if the model's loss is not one number for each example.
  """
  losses = model.loss(model.apply(params, x), y)
  if jnp.shape(losses) != x.shape[:1]:
    raise UserError(
      'The `loss` of the model must give one number for each example, of shape '
      f'{x.shape[:1]} here; its shape is {jnp.shape(losses)}.'
    )
  return losses


def descend(
  optimizer: optax.GradientTransformation,
  grads: Params,
  state: optax.OptState,
  params: Params,
  rate: jax.Array | None,
) -> tuple[Params, optax.OptState]:
  """A step of an optimizer, its update times the rate [] of the step; None is 1."""
  updates, state = optimizer.update(grads, state, params)
  if rate is not None:
    updates = jax.tree.map(lambda u: rate * u, updates)
  return optax.apply_updates(params, updates), state


def augmented(
  local: LocalTraining, key: jax.Array, step: jax.Array, x: jax.Array
) -> jax.Array:
  """The examples [B, ...] of a batch as a client's local step sees them."""
  if local.augmentation is None:
    return x
  return local.augmentation(key_of_step(key, prng_streams.AUGMENTATION, step), x)


def in_training(model: Model, key: jax.Array, step: jax.Array) -> Model:
  """The model as a client's local step applies it, with the random numbers of both."""
  draws = model.apply_train
  if draws is None:
    return model
  of_step = key_of_step(key, prng_streams.LAYERS, step)
  return model._replace(
    apply=lambda params, x: draws(params, x, of_step), apply_train=None
  )


def key_of_step(key: jax.Array, stream: int, step: jax.Array) -> jax.Array:
  """The key of a stream at a client's local step."""
  return jax.random.fold_in(prng_streams.fold(key, stream), step)
