"""The loss of a client's batch, as a local step sees it, and steps along gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import batching, prng_streams
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Model, Params
from fesem_jax.utils.errors import UserError

# params -> mean loss [] of a client's batch at this step, and its gradient.
BatchGradient = Callable[[Params], tuple[jax.Array, Params]]


class OwnStep(NamedTuple):
  """A local step on a batch, in place of a gradient step.

  What it trains is a dictionary of models and numbers, in place of one model.

  Attributes:
    init: params -> what the client remembers from step to step, such as moments.
    take: (params, memory, `BatchGradient`, step [] int32, rate [] or None) -> params,
      memory and the loss [] to report. Steps are counted from 0 in each round, alike
      for all clients; for the rate, see `LocalTraining.rate_of_step`. All gradients of
      a step are of the same batch and draw the same random numbers.
  """

  init: Callable[[Params], Any]
  take: Callable[..., tuple[Params, Any, jax.Array]]


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


def gradient_of(
  local: LocalTraining,
  key: jax.Array,
  step: jax.Array,
  batch: batching.Batch,
  frozen: Params = None,
) -> BatchGradient:
  """The loss of a batch at a client's local step and its gradient, as a function.

  `key` is that of the client in this round, `step` [] int32 is counted from 0, and
  `batch` is a `batching.Batch` of one client, without the axis C. Layers in `frozen` do
  not learn; None if all do.
  """
  x, y, weights, factors = batch
  x, model = augmented(local, key, step, x), in_training(local.model, key, step)

  def loss_of(params: Params) -> jax.Array:
    whole = params if frozen is None else frozen | params
    return weighted_loss(model, whole, x, y, weights, factors)

  def gradient(params: Params) -> tuple[jax.Array, Params]:
    with jax.default_matmul_precision(local.precision):
      return jax.value_and_grad(loss_of)(params)

  return gradient


def descend(
  local: LocalTraining,
  grads: Params,
  opt_state: optax.OptState,
  params: Params,
  rate: jax.Array | None,
) -> tuple[Params, optax.OptState]:
  """A step of the local optimizer, its update times the rate [] of the step."""
  updates, opt_state = local.optimizer.update(grads, opt_state, params)
  if rate is not None:
    updates = jax.tree.map(lambda u: rate * u, updates)
  return optax.apply_updates(params, updates), opt_state


def if_active(active: jax.Array, new: Any, old: Any) -> Any:
  """A tree, or the old one unless active [] bool."""
  return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, old)


def counted(
  active: jax.Array, loss: jax.Array, batch: batching.Batch
) -> tuple[jax.Array, jax.Array]:
  """The sum [] of a batch's losses and its examples [], 0 unless active [] bool."""
  _, _, weights, _ = batch
  count = jnp.where(active, weights.sum(), 0.0)
  return jnp.where(active, loss * weights.sum(), 0.0), count


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
