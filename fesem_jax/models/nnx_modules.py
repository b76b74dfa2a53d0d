"""NNX modules as models: functions of parameters, examples and, in training, a key."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.types import Model, Params
from fesem_jax.models import batch_statistics, conv
from fesem_jax.models.flax_calls import call_modes, is_same, to_dtype, to_float32
from fesem_jax.utils.errors import check

# Variables of a module that are parameters of its model.
_TRAINED = (nnx.Param, nnx.BatchStat)


def as_nnx_model(
  make: Callable[[nnx.Rngs], nnx.Module],
  example_shape: Sequence[int],
  dtype: Any = jnp.float32,
) -> Model:
  """The `Model` of an NNX module that `make` builds; see `from_flax`."""
  makes = callable(make) and not isinstance(make, nnx.Module)
  check(makes, 'module: must be a Linen module or a function that makes an NNX module')

  def build(key: jax.Array) -> nnx.Module:
    return make(nnx.Rngs(key))

  module = nnx.eval_shape(lambda: build(jax.random.key(0)))
  modes = call_modes(module.__call__)

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
      conv.for_nnx(module)
      if weights is not None:
        batch_statistics.mask_nnx(module, weights)
      logits = to_float32(module(to_dtype(x, dtype), **kwargs))
      return logits, _named(nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)))

    return run

  def init(key: jax.Array) -> Params:
    module = build(key)
    layers = nnx.to_pure_dict(nnx.state(module, _TRAINED))
    return _named(_as_defined(module, layers))

  x = jax.ShapeDtypeStruct((2, *example_shape), jnp.float32)
  module.train()
  train = function(modes.train)
  module.eval()
  evaluate = function(modes.evaluate)
  params, key = jax.eval_shape(lambda key: (init(key), key), jax.random.key(0))
  draws = _draws(evaluate, params, x, key)
  check(not draws, 'module: draws random numbers in evaluation; use train() and eval()')

  initial = nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
  statistics = batch_statistics.paths(initial)

  def apply(params: Params, x: jax.Array) -> jax.Array:
    if statistics:
      others, running = parameter_names.split(params, statistics)
      params = tree.merge(others, jax.lax.stop_gradient(running))
    return evaluate(params, x, jax.random.key(0))[0]

  def apply_train(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    return train(params, x, key)[0]

  if statistics:
    return Model(init, apply, apply_train=train, statistics=statistics)
  draws_nothing = is_same(train, evaluate, params, x, key)
  return Model(init, apply, apply_train=None if draws_nothing else apply_train)


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
    stream_key = jax.random.fold_in(key, i)
    return jax.random.split(stream_key, leaf.shape) if leaf.shape else stream_key

  return jax.tree.unflatten(form, [filled(i, leaf) for i, leaf in enumerate(leaves)])


def _as_defined(module: Any, layers: Any) -> Any:
  """The same tree in the order of the module's layers, as in a state_dict."""
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
