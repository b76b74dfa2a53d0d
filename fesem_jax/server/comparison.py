"""Comparison and averaging of models: whole, of one layer, or with matched units."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.platforms import per_device
from fesem_jax.core.types import Model, Params
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.server import em, hidden_units, matching

# The name of matched units where others are names of layers.
MATCHED = 'matched'


class ModelComparison(NamedTuple):
  """How clients' models are compared with centers, and what of them is averaged."""

  partial: bool  # whether distances are of less than all parameters
  # The part of a stack [S, ...] that distances are of.
  part: Callable[[Params], Params]
  # (stack [S, ...], references [S, ...] or [1, ...], mesh) -> the stack with the units
  # of each model in the order of its reference; None where units stay.
  align: Callable[[Params, Params, Mesh | None], Params] | None
  # Parts of centers [K, ...] -> what `nearest` needs of them, made once a round.
  prepare: Callable[[Params], Any]
  # (stack [S, ...], prepared centers, mesh=None) -> each client's nearest center [S]
  # int32, the squared distance of the parts [S] float32, and the stack as averaged.
  nearest: Callable[..., tuple[jax.Array, jax.Array, Params]]

  def alike(self, stack: Params, exists: jax.Array, mesh: Mesh | None) -> Params:
    """A stack [S, ...] with units in the order of the first model that `exists`."""
    if self.align is None:
      return stack
    return self.align(stack, tree.take(stack, exists.argmax()[None]), mesh)

  def mixed(self, shares: jax.Array, centers: Params, references: Params) -> Params:
    """Means [N, ...] of centers by `shares` [N, K], each in its reference's order."""
    align = self.align
    if align is None:
      return tree.mixtures(shares, centers)

    def mix(pair: tuple[jax.Array, Params]) -> Params:
      share, reference = pair
      aligned = align(centers, tree.expand(reference), None)
      return tree.unstack(tree.mixtures(share[None], aligned), 0)

    return jax.lax.map(mix, (shares, references))


def by_weights(names: str = 'all', statistics: Sequence[str] = ()) -> ModelComparison:
  """Compares weights one by one (Eq. 8): of all layers, or of names and patterns."""

  def part(params):
    if names != 'all':
      params = parameter_names.split(params, names.split(','))[1]
    if statistics and params is not None:
      params = parameter_names.split(params, statistics)[0]
    return params

  def nearest(stack, centers, mesh: Mesh | None = None):
    return *em.e_step(part(stack), centers, mesh), stack

  partial = names != 'all' or bool(statistics)
  return ModelComparison(partial, part, None, lambda centers: centers, nearest)


def by_matching(model: Model) -> ModelComparison:
  """Compares and averages models with their hidden units matched (Section 5.1)."""
  layers = hidden_units.layers_of(model)

  def align(stack, references, mesh):
    def on_device(stack, references):
      return matching.align(layers, stack, references), None

    return per_device(on_device, mesh, 1)(stack, references)[0]

  def prepare(centers):
    return centers, matching.separations(layers, centers)

  def nearest(stack, prepared, mesh: Mesh | None = None):
    def on_device(stack, prepared):
      return matching.nearest(layers, stack, *prepared), None

    return per_device(on_device, mesh, 1)(stack, prepared)[0]

  return ModelComparison(False, lambda params: params, align, prepare, nearest)


def build(cluster_on: str, model: Model) -> ModelComparison:
  """The comparison that `cluster_on` names: 'all', 'matched', or names of parameters.

  Raises `UserError` on an unknown layer, or units that cannot be matched.
  """
  if cluster_on == MATCHED:
    return by_matching(model)
  params = check_parameters(model)
  if cluster_on != 'all':
    parameter_names.chosen(params, cluster_on.split(','), 'cluster_on')
  return by_weights(cluster_on, model.statistics)
