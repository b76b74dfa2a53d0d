"""Optax optimizers of users: what clients cannot train with."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core.prng_streams import is_key
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import UserError, argument

# Operations that draw random numbers, as jaxprs print them.
_DRAWS = re.compile(r'\b(random_bits|threefry2x32|rng_bit_generator|rng_uniform)\b')


def check(optimizer: Any, params: Params, name: str = 'optimizer') -> None:
  """Raises `UserError`, naming the argument, unless an optimizer can be used.

  `params` are the shapes of a model's parameters, of which none is made.
  """
  if not (hasattr(optimizer, 'init') and hasattr(optimizer, 'update')):
    what = 'be called first' if callable(optimizer) else 'be one of Optax'
    raise UserError(
      f'{argument(name)} is {optimizer!r:.60} and must {what}, e.g. optax.sgd(0.1) or '
      "local_optimizer('sgd', 0.1)."
    )

  def step(gradients: Params, state: Any, params: Params) -> Any:
    return optimizer.update(gradients, state, params)

  try:
    state = jax.eval_shape(optimizer.init, params)
    traced, shapes = jax.make_jaxpr(step, return_shape=True)(params, state, params)
  except Exception as e:
    raise UserError(
      f'{argument(name)} cannot take a step on this model ({_first_line(e)}); its '
      'update must need no more than gradients, state and parameters, unlike those of '
      'lbfgs and reduce_on_plateau, and its rate must be one number.'
    ) from e
  for before, after in zip((params, state), shapes, strict=True):
    if _shapes(before) != _shapes(after):
      raise UserError(
        f'{argument(name)} must give updates of the shapes of the parameters, and a '
        'state of the shapes of its first one; a rate must be one number.'
      )
  try:
    with jax.numpy_rank_promotion('raise'):
      jax.eval_shape(step, params, state, params)
  except Exception as e:
    raise UserError(
      f'{argument(name)} spreads an array over the parameters ({_first_line(e)}); a '
      'rate must be one number. For one by layer, use optax.multi_transform.'
    ) from e
  drawn = _DRAWS.search(str(traced))
  if drawn and not any(map(is_key, jax.tree.leaves(state))):
    raise UserError(
      f'{argument(name)} draws random numbers, but its state holds no key, so that all '
      'clients would draw the same ones in every round; keep a key in its state, as '
      'optax.add_noise does.'
    )
  if 'SAMState' in str(jax.tree.structure(state)):
    raise UserError(
      f'{argument(name)} climbs in some of its steps, as optax.contrib.sam, and a '
      'client whose last step is such a one would send the model from there.'
    )
  if any(map(is_key, jax.tree.leaves(state))):
    return
  if _goes_up(optimizer, params, gradient=1.0):
    raise UserError(
      f'{argument(name)} follows the gradient upwards, which raises the loss; give a '
      'whole optimizer with a positive rate, such as optax.sgd(0.1), or end it with '
      'optax.scale(-0.1). A parameter that optax.masked leaves out is not frozen but '
      'moves by its gradient; `models.train_only` freezes it.'
    )
  if _goes_up(optimizer, params, gradient=0.0):
    raise UserError(
      f'{argument(name)} enlarges parameters where the gradient is 0: its weight decay '
      'is negative, or comes after the rate; put optax.add_decayed_weights before '
      'optax.sgd.'
    )


def _goes_up(
  optimizer: optax.GradientTransformation, params: Params, gradient: float
) -> bool:
  """True if the first step enlarges some of the parameters, of one number 1 each."""
  one = jax.tree.map(lambda x: jnp.ones((1,) * len(x.shape), x.dtype), params)
  try:
    gradients = jax.tree.map(lambda x: gradient * x, one)
    updates, _ = optimizer.update(gradients, optimizer.init(one), one)
    return any(float(x.sum()) > 0 for x in jax.tree.leaves(updates))
  except Exception:  # Of arrays of a size that it does not take.
    return False


def check_kept(optimizer: optax.GradientTransformation, params: Params) -> None:
  """Raises `UserError` unless an optimizer has a state that clients can keep."""
  state = jax.tree.leaves(jax.eval_shape(optimizer.init, params))
  if not state:
    raise UserError(
      '`keep_optimizer_state` needs an optimizer that has a state, e.g. sgd with '
      'momentum or adam; this one has none.'
    )
  if any(map(is_key, state)):
    raise UserError(
      '`keep_optimizer_state` is not defined for an optimizer with a random key in its '
      'state, which is that of the client in each round.'
    )


def _first_line(e: Exception) -> str:
  return (str(e) or type(e).__name__).splitlines()[0].rstrip('.')


def _shapes(tree: Any) -> Any:
  leaves, form = jax.tree.flatten(tree)
  return form, [x.shape for x in leaves]


def notes(optimizer: optax.GradientTransformation, params: Params) -> list[str]:
  """Sentences on what the reset of an optimizer's state in every round changes.

  `params` are the shapes of a model's parameters.
  """
  state, named = jax.eval_shape(optimizer.init, params), argument('optimizer')

  def holds(*kinds: str) -> bool:
    def is_one(node: Any) -> bool:
      return type(node).__name__ in kinds

    return any(map(is_one, jax.tree.leaves(state, is_leaf=is_one)))

  sentences = []
  if holds('ScaleByScheduleState', 'WrappedScheduleState', 'WeightDecaySchedule'):
    sentences.append(
      f'a schedule within {named} starts again in every round, since its state is '
      f'reset; {argument("lr_schedule")} is a schedule over rounds, '
      f'{argument("local_lr_schedule")} one over the local steps of a round.'
    )
  if holds('AddNoiseState'):
    sentences.append(
      f'the noise within {named} is annealed anew in every round unless its gamma is '
      '0, since its state is reset.'
    )
  if holds('MultiStepsState', 'ApplyEvery'):
    sentences.append(
      f'{named} gathers the gradients of several steps; those that it holds at the end '
      'of a round are lost, since its state is reset.'
    )
  return sentences


def of_layer(
  optimizer: optax.GradientTransformation, layer: str, stacked: bool = False
) -> optax.GradientTransformation:
  """An optimizer for parameters of which `layer` is a whole model, and all that learns.

  The optimizer sees the model as it is, so that masks and labels by its layers hold. If
  `stacked`, the layer is R models [R, ...], each with a state of its own.
  """
  each: Any = jax.vmap if stacked else lambda fn: fn

  def init(params: Params) -> Any:
    return each(optimizer.init)(params[layer])

  def update(gradients: Params, state: Any, params: Params = None) -> Any:
    updates, state = each(optimizer.update)(gradients[layer], state, params[layer])
    return {layer: updates}, state

  return optax.GradientTransformation(init, update)
