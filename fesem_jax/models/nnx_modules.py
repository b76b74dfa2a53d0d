"""NNX modules as models: functions of parameters, examples and, in training, a key."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.types import Model, Params
from fesem_jax.models import batch_statistics, conv, training_modes
from fesem_jax.models.model_checks import (
  as_taken,
  check_only_parameters,
  in_float32,
  same_function,
)
from fesem_jax.utils.errors import UserError

# Variables of a module that are parameters of its model.
_TRAINED = (nnx.Param, nnx.BatchStat)


def as_nnx_model(
  make: Callable[[nnx.Rngs], nnx.Module],
  example_shape: Sequence[int],
  dtype: Any = jnp.float32,
) -> tuple[str, Model]:
  """The name of an NNX module that `make` builds, and its `Model`; see `from_flax`."""
  if isinstance(make, nnx.Module) or not callable(make):
    raise UserError(
      f'{type(make).__name__} is no Linen module: give from_flax a function that makes '
      'the NNX module, e.g. lambda rngs: Net(10, rngs=rngs).'
    )

  def build(key: jax.Array) -> nnx.Module:
    module = make(nnx.Rngs(key))
    if not isinstance(module, nnx.Module):
      raise UserError(
        f'from_flax needs a function that makes an NNX module; what it was given makes '
        f'a {type(module).__name__}.'
      )
    return module

  module = nnx.eval_shape(lambda: build(jax.random.key(0)))
  name = type(module).__name__
  modes = training_modes.of_call(name, module.__call__)
  _check_state(name, module)

  def function(kwargs: dict[str, Any]) -> Callable[..., tuple[jax.Array, Params]]:
    """The module as it is now: (params, x, key, weights) -> logits, statistics."""
    parts: Any = nnx.split(module, _TRAINED, nnx.RngState)
    graph, layers, streams = parts

    def run(
      params: Params, x: jax.Array, key: jax.Array, weights: jax.Array | None = None
    ) -> tuple[jax.Array, Params]:
      state = jax.tree.map(lambda s: s, layers)  # A copy, to be filled.
      nnx.replace_by_pure_dict(state, params)
      module = nnx.merge(graph, state, _filled(streams, key))
      conv.in_nnx(module)
      if weights is not None:
        batch_statistics.count_in(module, weights)
      logits = in_float32(module(as_taken(x, dtype), **kwargs))
      return logits, _named(nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)))

    return run

  def init(key: jax.Array) -> Params:
    module = build(key)
    layers = nnx.to_pure_dict(nnx.state(module, _TRAINED))
    return _named(_as_defined(module, layers))

  x = jax.ShapeDtypeStruct((2, *example_shape), jnp.float32)
  as_made = function(training_modes.of_one_function(modes, module.__call__).evaluate)
  module.train()
  train = function(modes.train or {})
  module.eval()
  evaluate = function(modes.evaluate)
  other = True  # In training another function.
  params, key = jax.eval_shape(lambda key: (init(key), key), jax.random.key(0))
  if _draws(train, params, x, key):
    if _draws(evaluate, params, x, key):
      raise training_modes.always_random(name)
  elif _has_dropout(module):  # It would have no effect, unsaid.
    raise training_modes.always_random(name)
  elif same_function(train, evaluate, params, x, key):
    evaluate, other = as_made, False

  running = nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
  statistics = batch_statistics.paths(running)

  def apply(params: Params, x: jax.Array) -> jax.Array:
    if statistics:
      others, own = parameter_names.split(params, statistics)
      params = tree.merge(others, jax.lax.stop_gradient(own))
    return evaluate(params, x, jax.random.key(0))[0]

  def apply_train(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    return train(params, x, key)[0]

  if statistics:
    return name, Model(init, apply, apply_train=train, statistics=statistics)
  return name, Model(init, apply, apply_train=apply_train if other else None)


def _check_state(name: str, module: nnx.Module) -> None:
  """Raises `UserError` on state beside parameters, statistics and random numbers."""
  state = nnx.to_flat_state(nnx.state(module, nnx.Not(nnx.Param)))
  known = nnx.RngState, nnx.BatchStat
  others = [v for _, v in state if not isinstance(v, known)]
  check_only_parameters(name, {type(variable).__name__ for variable in others})
  for _, layer in nnx.iter_modules(module):
    if isinstance(layer, nnx.Dropout) and layer.rate > 0 and layer.rngs is None:
      raise UserError(
        f'{name} has Dropout without random numbers; make it with '
        f'nnx.Dropout({layer.rate}, rngs=rngs).'
      )


def _has_dropout(module: nnx.Module) -> bool:
  """True if a module has Dropout that drops anything."""
  layers = [layer for _, layer in nnx.iter_modules(module)]
  return any(isinstance(layer, nnx.Dropout) and layer.rate > 0 for layer in layers)


def _draws(run: Callable[..., Any], params: Params, x: Any, key: Any) -> bool:
  """True if a function of (params, x, key) looks at its key."""
  traced = jax.make_jaxpr(lambda key, p, x: run(p, x, key))(key, params, x).jaxpr
  live = {id(v) for v in traced.outvars}
  for equation in reversed(traced.eqns):
    if any(id(v) in live for v in equation.outvars):
      live |= {id(v) for v in equation.invars}
  return id(traced.invars[0]) in live


def _filled(streams: Any, key: jax.Array) -> Any:
  """Streams of numbers that start anew from a key, each with one of its own."""
  leaves, form = jax.tree.flatten(streams)

  def filled(i: int, leaf: Any) -> jax.Array:
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      return jnp.zeros(leaf.shape, leaf.dtype)
    own = jax.random.fold_in(key, i)
    return jax.random.split(own, leaf.shape) if leaf.shape else own

  return jax.tree.unflatten(form, [filled(i, leaf) for i, leaf in enumerate(leaves)])


def _as_defined(module: Any, layers: Any) -> Any:
  """The same tree in the order in which the module got its layers, which NNX sorts.

  Porting matches the layers to a state_dict in this order, PyTorch's own.
  """
  if not isinstance(layers, dict):
    return layers
  # A dict or a list may be one of `nnx.data`.
  parts = module if isinstance(module, dict) else getattr(module, '__dict__', {})
  defined = [name for name in parts if name in layers]
  others = [name for name in layers if name not in defined]  # Numbers of a list.
  return {name: _as_defined(parts[name], layers[name]) for name in defined} | {
    name: _as_defined(module[name], layers[name]) for name in others
  }


def _named(layers: Any) -> Params:
  """The same tree with names for numbers: layers have names, those of a list too."""
  if not isinstance(layers, dict):
    return layers
  return {str(name): _named(layer) for name, layer in layers.items()}
