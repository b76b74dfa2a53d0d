"""What FeSEM compares and averages: whole models, one layer, or matched units."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from fesem_jax import em
from fesem_jax.base import Params
from fesem_jax.errors import check_choice


class Comparison(NamedTuple):
  """How clients' models are compared with centers, and what of them is averaged.

  Attributes:
    partial: whether distances are of less than all parameters.
    part: the part of a stack [S, ...] that distances are of.
    alike: (stack [S, ...], exists [S]) -> the stack with units in one order, so that
      k-means may compare its models with each other.
    nearest: (stack [S, ...], parts of centers [K, ...], mesh=None) -> each client's
      nearest center [S] int32, the squared distance of the parts [S] float32, and
      the stack as it is to be averaged with those centers.
  """

  partial: bool
  part: Callable[[Params], Params]
  alike: Callable[[Params, jax.Array], Params]
  nearest: Callable[..., tuple[jax.Array, jax.Array, Params]]


def by_weights(layer: str = 'all') -> Comparison:
  """Weights are compared one by one, as in Eq. 8, of all layers or of one."""

  def part(params):
    return params if layer == 'all' else params[layer]

  def alike(stack, exists):
    del exists
    return stack

  def nearest(stack, centers, mesh: Mesh | None = None):
    return *em.e_step(part(stack), centers, mesh), stack

  return Comparison(layer != 'all', part, alike, nearest)


def build(cluster_on: str, model_params: Params) -> Comparison:
  """The comparison that an option names.

  Args:
    cluster_on: 'all' layers or the name of one.
    model_params: shapes of one model's parameters, by layer.

  Raises:
    UserError: on a layer that the model does not have.
  """
  check_choice('cluster_on', cluster_on, ('all', *model_params))
  return by_weights(cluster_on)
