"""How the first model is drawn: as Flax's layers do by default, or as PyTorch's."""

from collections.abc import Callable

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core.types import Model, Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.utils.errors import UserError


def pytorch(model: Model) -> Model:
  """A model whose layers start as those of PyTorch do by default.

  Kernels and biases of `torch.nn.Linear` and `torch.nn.Conv2d` are uniform in
  (-1 / sqrt(n), 1 / sqrt(n)), n being the number of a unit's inputs: a third of the
  variance of Flax's kernels, whose biases start at 0. Published figures that were
  computed with PyTorch depend on it where models train for few steps. Other parameters,
  such as those of normalizations, keep their start.

  Args:
    model: whose layers have a `kernel` [..., I, O] and perhaps a `bias` [O]; all axes
      but the last count as inputs.

  Raises:
    UserError: if the parameters are no dict of layers.
  """
  if not isinstance(jax.eval_shape(model.init, jax.random.key(0)), dict):
    raise UserError(
      '`initializer=pytorch` needs a model whose parameters are a dict of layers, each '
      'with a `kernel`.'
    )

  def init(key: jax.Array) -> Params:
    params = flatten_dict(model.init(key))
    kernels = sorted(path for path in params if path[-1] == KERNEL)
    for i, path in enumerate(kernels):
      shape = params[path].shape
      bound = (params[path].size / shape[-1]) ** -0.5
      of_layer = [(*path[:-1], name) for name in (KERNEL, 'bias')]
      for j, name in enumerate(x for x in of_layer if x in params):
        own = jax.random.fold_in(jax.random.fold_in(key, i), j)
        params[name] = jax.random.uniform(
          own, params[name].shape, params[name].dtype, -bound, bound
        )
    return unflatten_dict(params)

  return model._replace(init=init)


def _flax(model: Model) -> Model:
  return model


INITIALIZERS: dict[str, Callable[[Model], Model]] = {'flax': _flax, 'pytorch': pytorch}
