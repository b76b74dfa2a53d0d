"""Units of a network as vectors, and their order.

The units of a layer are its outputs: channels of a convolution, neurons of a dense
layer. All are columns: an array [R, U] holds R numbers of each of U units.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core.types import Model, Params
from fesem_jax.models import networks
from fesem_jax.utils.errors import check

_HIGHEST = jax.lax.Precision.HIGHEST

# Squared distances from products are off by less than this share of the squared norms.
_ROUNDING = 1e-5


class Layer(NamedTuple):
  """A convolution or dense layer, and what normalizes its units."""

  # Of the kernel, whose last axis are the units; its inputs repeat those of the layer
  # before in blocks: a window's pixels, or an image's.
  name: str
  norm: str  # name of its GroupNorm, '' without one
  groups: int  # of the GroupNorm, 1 without one; units stay together with their group


def layers_of(model: Model) -> tuple[Layer, ...]:
  """The layers from the input on; `UserError` if they may not run in sequence."""
  check(model.layers, 'cluster_on: matched needs a model whose layers run in sequence')
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  layers: list[Layer] = []
  for name in model.layers:
    if set(shapes[name]) == {'scale', 'bias'}:
      layers[-1] = Layer(layers[-1].name, name, networks.NORM_GROUPS)
    else:
      layers.append(Layer(name, '', 1))
  return tuple(layers)


def incoming(layer: Layer, params: Params, inputs: jax.Array | None) -> list[jax.Array]:
  """Arrays [R, U] of what leads to a layer's units, of inputs in the order `before`."""
  kernel = params[layer.name]['kernel']
  if inputs is not None:
    kernel = _reorder_inputs(kernel, inputs)
  vectors = [params[layer.name]['bias']]
  if layer.norm:
    vectors += [params[layer.norm]['scale'], params[layer.norm]['bias']]
  return [kernel.reshape(-1, kernel.shape[-1]), *(v[None] for v in vectors)]


def _reorder_inputs(kernel: jax.Array, order: jax.Array) -> jax.Array:
  """A kernel whose inputs, in each of their blocks, are put in an order [I]."""

  def reorder() -> jax.Array:
    blocks = kernel.reshape(-1, len(order), kernel.shape[-1])
    return jnp.take(blocks, order, axis=1).reshape(kernel.shape)

  return jax.lax.cond(_is_identity(order), lambda: kernel, reorder)


def _is_identity(order: jax.Array) -> jax.Array:
  """[] bool: whether every unit is in its own place."""
  return (order == jnp.arange(len(order))).all()


def in_order(
  layers: Sequence[Layer], model: Params, orders: Sequence[jax.Array]
) -> Params:
  """One model with its hidden units in other `orders` [U] int32, the same function."""
  if not orders:
    return model

  def reorder() -> Params:
    reordered = {}
    for i, layer in enumerate(layers):
      kernel = model[layer.name]['kernel']
      if i > 0:
        kernel = _reorder_inputs(kernel, orders[i - 1])
      reordered[layer.name] = {'kernel': kernel, 'bias': model[layer.name]['bias']}
      if layer.norm:
        reordered[layer.norm] = model[layer.norm]
      if i < len(orders):
        for name in filter(None, (layer.name, layer.norm)):
          reordered[name] = {n: x[..., orders[i]] for n, x in reordered[name].items()}
    return {name: reordered[name] for name in model}

  is_identity = functools.reduce(jnp.logical_and, map(_is_identity, orders))
  return jax.lax.cond(is_identity, lambda: model, reorder)


def distances(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> jax.Array:
  """[U] squared distance of each unit to the one in its place; arrays [R, U]."""
  squares = [jnp.square(x - y).sum(axis=0) for x, y in zip(a, b, strict=True)]
  return functools.reduce(jnp.add, squares)


def costs(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> jax.Array:
  """[U, U] squared distance of each unit of a to each of b, by products."""

  def array_costs(x: jax.Array, y: jax.Array) -> jax.Array:
    middle = x.mean(axis=1, keepdims=True)
    x, y = x - middle, y - middle
    products = jnp.matmul(x.T, y, precision=_HIGHEST)
    squares = jnp.square(x).sum(axis=0)[:, None] + jnp.square(y).sum(axis=0)[None]
    return squares - 2 * products

  total = functools.reduce(jnp.add, map(array_costs, a, b))
  return jnp.maximum(total, 0.0)


def separation(units: Sequence[jax.Array]) -> jax.Array:
  """[U] a bound from below of each unit's squared distance to the nearest other."""
  squared = costs(units, units)
  middles = [x.mean(axis=1, keepdims=True) for x in units]
  norms = distances(units, middles)
  rounding = _ROUNDING * (norms[:, None] + norms[None])
  nearest = jnp.where(jnp.eye(len(squared), dtype=bool), jnp.inf, squared - rounding)
  return jnp.maximum(nearest.min(axis=1), 0.0)
