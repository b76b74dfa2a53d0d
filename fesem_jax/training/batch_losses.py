"""A batch of a client in a local step, its loss, and steps along its gradient."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import parameter_names, prng_streams, tree
from fesem_jax.core.local_training import Augment
from fesem_jax.core.types import Model, Params
from fesem_jax.utils.errors import check


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
  """Examples of one client, as its model sees them in a local step."""

  model: Model  # in training, it draws the random numbers of the step
  x: jax.Array  # [B, ...] float32
  y: jax.Array  # [B, ...]
  weights: jax.Array  # [B] float32, 0 in the places behind the client's last example
  # [B] float32 of the losses, over whose number the mean is still taken; None is 1
  factors: jax.Array | None = None
  active: jax.Array | bool = True  # [] bool, False after the client's last step

  def loss(self, params: Params, model: Model | None = None) -> jax.Array:
    """[] float32: mean loss of the examples of weight 1."""
    model = self.model if model is None else model
    losses, weights = losses_of(model, params, self.x, self.y), self.weights
    if self.factors is not None:
      losses = self.factors * losses
    return jnp.where(weights > 0, losses, 0.0).sum() / jnp.maximum(weights.sum(), 1.0)


def losses_of(model: Model, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
  """[B] float32 loss of each example; `UserError` if the loss has another shape."""
  losses = model.loss(model.apply(params, x), y)
  is_vector = jnp.shape(losses) == x.shape[:1]
  check(is_vector, f'loss: must have shape {x.shape[:1]}, one for each example')
  return losses


def descend(
  optimizer: optax.GradientTransformation,
  grads: Params,
  state: optax.OptState,
  params: Params,
  rate: jax.Array | None,
  statistics: tuple[str, ...] = (),
) -> tuple[Params, optax.OptState]:
  """A step of an optimizer times a rate []; `statistics` are set, see `in_training`."""
  if statistics:
    new = parameter_names.split(grads, statistics)[1]
    zero = functools.partial(parameter_names.zeroed, names=statistics)
    moved, state = descend(optimizer, zero(grads), state, zero(params), rate)
    return tree.merge(parameter_names.split(moved, statistics)[0], new), state
  updates, state = optimizer.update(grads, state, params)
  if rate is not None:
    updates = jax.tree.map(lambda u: rate * u, updates)
  return optax.apply_updates(params, updates), state


def augmented(
  augmentation: Augment, key: jax.Array, step: jax.Array, x: jax.Array
) -> jax.Array:
  return augmentation(key_of_step(key, prng_streams.AUGMENTATION, step), x)


def in_training(
  model: Model, key: jax.Array, step: jax.Array, weights: jax.Array
) -> Model:
  """The model with a step's random numbers; a statistic's gradient is its new value."""
  draws = model.apply_train
  if draws is None:
    return model
  step_key = key_of_step(key, prng_streams.LAYERS, step)

  def apply(params: Params, x: jax.Array) -> Any:
    if not model.statistics:
      return draws(params, x, step_key)
    trained, statistics = parameter_names.split(params, model.statistics)
    logits, new = draws(
      tree.merge(trained, jax.lax.stop_gradient(statistics)), x, step_key, weights
    )
    return _with_gradient(logits, *map(parameter_names.without_none, (statistics, new)))

  return model._replace(apply=apply, apply_train=None)


@jax.custom_vjp
def _with_gradient(logits: jax.Array, old: Params, new: Params) -> jax.Array:
  """The logits, and `new` as the gradient with respect to `old`."""
  return logits


_with_gradient.defvjp(
  lambda logits, old, new: (logits, new),
  lambda new, gradient: (gradient, new, tree.zeros_like(new)),
)


def key_of_step(key: jax.Array, stream: int, step: jax.Array) -> jax.Array:
  return jax.random.fold_in(prng_streams.fold(key, stream), step)
