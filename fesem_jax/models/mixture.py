"""Clients that predict with a weighted mixture of models, as one larger model each."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.types import Model, Params

# Layers of the larger model: the R models [R, ...], and their log weights [R].
MODELS, LOG_WEIGHTS = 'models', 'log_weights'


def as_one_model(
  model: Model, used: ClientModels
) -> tuple[Model, ClientModels, Sequence[str] | None]:
  """The model and parameters of clients as one model each; names of what trains."""
  if used.mixture is None:
    return model, used, None

  def init(key: jax.Array) -> Params:
    count = used.num_models()
    models = jax.vmap(model.init)(jax.random.split(key, count))
    return {MODELS: models, LOG_WEIGHTS: jnp.full(count, -jnp.log(count))}

  def apply(params: Params, x: jax.Array) -> jax.Array:
    return mixed(params, jax.vmap(model.apply, (0, None))(params[MODELS], x))

  def mixed(params: Params, outputs: jax.Array) -> jax.Array:
    return model.task.mix(outputs, params[LOG_WEIGHTS])

  def apply_train(
    params: Params, x: jax.Array, key: jax.Array, *weights: jax.Array
  ) -> Any:
    assert model.apply_train is not None
    keys = jax.random.split(key, params[LOG_WEIGHTS].shape[0])
    axes = 0, None, 0, *[None] * len(weights)
    outputs = jax.vmap(model.apply_train, axes)(params[MODELS], x, keys, *weights)
    if model.statistics:
      return mixed(params, outputs[0]), {MODELS: outputs[1]}
    return mixed(params, outputs)

  models = ClientModels(
    shared={MODELS: tree.expand(used.shared), LOG_WEIGHTS: None},
    personal={MODELS: None, LOG_WEIGHTS: jnp.log(jnp.maximum(used.mixture, 1e-30))},
  )
  larger = model._replace(
    init=init,
    apply=apply,
    apply_with=None,
    apply_train=None if model.apply_train is None else apply_train,
    statistics=tuple(f'{MODELS}/{path}' for path in model.statistics),
  )
  return larger, models, (MODELS,)


def optimizer_of(
  optimizer: optax.GradientTransformation, layers: Sequence[str] | None
) -> optax.GradientTransformation:
  """The optimizer of `as_one_model`, for each model of a mixture alone."""
  if layers is None:
    return optimizer

  def init(params: Params) -> Any:
    return jax.vmap(optimizer.init)(params[MODELS])

  def update(gradients: Params, state: Any, params: Params = None) -> Any:
    step: Any = jax.vmap(optimizer.update)
    updates, state = step(gradients[MODELS], state, params[MODELS])
    return {MODELS: updates}, state

  return optax.GradientTransformation(init, update)
