"""Hidden units matched between models (Section 5.1): FeSEM-MA's distance and mean.

Two networks may compute the same with their hidden units in another order. A model is
aligned to a reference layer by layer from the input: its units, each the vector of its
incoming weights (from inputs that are in order already) and its bias, take the places
of those of the reference such that the sum of squared distances is least. The inputs of
the next layer follow; the units of the last layer are the classes and stay.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fesem_jax.core import platforms, tree
from fesem_jax.core.types import Params
from fesem_jax.server import hidden_units
from fesem_jax.server.hidden_units import Layer
from fesem_jax.server.linear_assignment import solve

# How many models an accelerator aligns side by side.
_BATCH = 16


def separations(layers: Sequence[Layer], references: Params) -> tuple[jax.Array, ...]:
  """[K, U] float32 of each hidden layer: at most a unit's distance to the next one."""
  # A model whose units are closer to their places than half of it needs no matching.

  def separation(reference: Params) -> list[jax.Array]:
    hidden = [hidden_units.incoming(layer, reference, None) for layer in layers[:-1]]
    return list(map(hidden_units.separation, hidden))

  return tuple(jax.lax.map(separation, references))


def align(layers: Sequence[Layer], stack: Params, references: Params) -> Params:
  """Models [S, ...] with units in the order of references [S, ...] or [1, ...]."""
  if jax.tree.leaves(references)[0].shape[0] == 1:
    separation = separations(layers, references)
    reference, separation = tree.unstack((references, separation), 0)

    def align_to_shared(model):
      orders, _ = match(layers, model, reference, separation)
      return hidden_units.in_order(layers, model, orders)

    return _map(align_to_shared, stack)

  def align_pair(pair):
    model, reference = pair
    orders, _ = match(layers, model, reference, None)
    return hidden_units.in_order(layers, model, orders)

  return _map(align_pair, (stack, references))


def nearest(
  layers: Sequence[Layer],
  stack: Params,
  centers: Params,
  separation: tuple[jax.Array, ...] | None = None,
) -> tuple[jax.Array, jax.Array, Params]:
  """Nearest center [S] int32, squared distance [S], and models in its order."""
  if separation is None and jax.tree.leaves(stack)[0].shape[0] > 1:
    # For one model, no less work than matching.
    separation = separations(layers, centers)

  def assign(model):
    def match_center(center):
      reference, center_separation = center
      return match(layers, model, reference, center_separation)

    orders, distances = jax.lax.map(match_center, (centers, separation))
    cluster = distances.argmin().astype(jnp.int32)
    aligned = hidden_units.in_order(layers, model, [order[cluster] for order in orders])
    return cluster, distances[cluster], aligned

  return _map(assign, stack)


def _map(fn: Callable[[Any], Any], stack: Any) -> Any:
  """`fn` of each row of a stack; one by one on CPU, as only so `cond` skips work."""

  def side_by_side(stack):
    return jax.lax.map(fn, stack, batch_size=_BATCH)

  return platforms.choose(lambda stack: jax.lax.map(fn, stack), side_by_side, stack)


def match(
  layers: Sequence[Layer],
  model: Params,
  reference: Params,
  separation: Sequence[jax.Array] | None,
) -> tuple[list[jax.Array], jax.Array]:
  """Orders [U] int32 of a model's hidden layers, and its distance to a reference."""
  orders: list[jax.Array] = []
  distance = jnp.float32(0)
  for i, layer in enumerate(layers):
    units = hidden_units.incoming(layer, model, orders[-1] if orders else None)
    reference_units = hidden_units.incoming(layer, reference, None)
    in_place = hidden_units.distances(units, reference_units)
    if i == len(layers) - 1:
      distance += in_place.sum()
      break
    is_far = jnp.bool_(True)
    if separation is not None:
      is_far = (in_place > separation[i] / 4).any()
    assign = functools.partial(_assign, layer.groups, units, reference_units, in_place)
    keep = functools.partial(_keep, in_place)
    order, layer_distance = jax.lax.cond(is_far, assign, keep)
    orders.append(order)
    distance += layer_distance
  return orders, distance


def _keep(distances: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The result of `_assign` where every unit stays in its place."""
  return jnp.arange(distances.shape[0], dtype=jnp.int32), distances.sum()


def _assign(
  groups: int,
  units: Sequence[jax.Array],
  reference_units: Sequence[jax.Array],
  distances: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """[U] int32 order of the units of one layer, and the sum of squared distances."""
  cost = hidden_units.costs(reference_units, units)
  # Units that stay are compared by differences, as products lose digits.
  cost = jnp.where(jnp.eye(len(distances), dtype=bool), distances[:, None], cost)
  order = _order(cost, groups)
  moved = [x[:, order] for x in units]
  return order, hidden_units.distances(moved, reference_units).sum()


def _order(cost: jax.Array, groups: int) -> jax.Array:
  """[U] int32, the least sum of costs [U, U] that leaves each group together."""
  if groups == 1:
    return solve(cost)
  size = cost.shape[0] // groups
  blocks = cost.reshape(groups, size, groups, size).swapaxes(1, 2)
  inner = jax.vmap(jax.vmap(solve))(blocks)  # [groups, groups, size]
  group_cost = jnp.take_along_axis(blocks, inner[..., None], axis=3).sum(axis=(2, 3))
  group = solve(group_cost)
  unit = inner[jnp.arange(groups), group]
  return (group[:, None] * size + unit).reshape(-1)
