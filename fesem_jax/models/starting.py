"""Models that start from given weights, and models of which only some layers train."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.offloading import as_arrays
from fesem_jax.core.types import Model, Params
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.tasks.targets import finite_float32
from fesem_jax.utils.errors import check


def parameters_named(model: Model, names: Sequence[str], flag: str) -> tuple[str, ...]:
  """Paths of parameters that names or patterns choose; see `parameter_names`."""
  return parameter_names.chosen(check_parameters(model), names, flag)


def start_from(
  model: Model,
  weights: Mapping[str, np.ndarray],
  source: str = 'weights',
  layers: Sequence[str] = (),
) -> Model:
  """A model that starts from given parameters instead of random ones.

  Args:
    model: see `Model`; its parameters are a dict of layers.
    weights: path of each parameter, as dense0/kernel, -> its array; or nested dicts.
    source: their origin, for errors.
    layers: names of the layers to load, or patterns such as stage0* or **/norm*; the
      others are random. Empty for all.

  Raises:
    UserError: on a parameter that is missing, of another shape or not finite.
  """
  weights = flatten_dict(dict(weights), sep='/')
  only = parameters_named(model, layers, 'layers')
  shapes = flatten_dict(jax.eval_shape(model.init, jax.random.key(0)), sep='/')
  arrays: dict[str, jax.Array] = {}
  for path, shape in shapes.items():
    if layers and path not in only:
      continue
    check(
      path in weights, f'{source}: has no {path}; name the layers to take in layers'
    )
    array = np.asarray(weights[path])
    fits = array.shape == shape.shape
    check(
      fits, f'{source}: {path} has shape {array.shape}; the model has {shape.shape}'
    )
    arrays[path] = jnp.asarray(finite_float32(array, f'{path} in {source}'))

  def init(key: jax.Array) -> Params:
    return unflatten_dict(flatten_dict(model.init(key), sep='/') | arrays, sep='/')

  return model._replace(init=init)


@dataclasses.dataclass(frozen=True, eq=False)
class _Completed:
  """The `apply` of a model whose parameters are only some of another one's."""

  whole: Model  # the other model
  constants: Params  # its further parameters
  learn: tuple[str, ...]  # paths of those that are parameters of both

  def __call__(self, params: Params, x: jax.Array) -> jax.Array:
    return self.whole.apply(tree.merge(self.constants, params), x)


def train_only(
  model: Model, layers: Sequence[str], key: jax.Array | None = None
) -> Model:
  """A model that trains only some parameters; the others keep their initial values.

  Methods train, send, average and compare only these. The others are constants, the
  same for all clients and centers; running statistics of BatchNorm never are.

  Args:
    model: see `Model`; its parameters are a dict of layers.
    layers: layers that train: names, or patterns such as stage0* or */lora_a; * stands
      for any characters, also /, and **/ also for nothing.
    key: draws the others unless `start_from` gives them; by default of seed 0.

  Raises:
    UserError: on a name that no layer or parameter has.
  """
  # Layers that do not train still normalize by their batches.
  learn = parameters_named(model, layers, 'train_layers') + model.statistics
  start = jax.jit(model.init)(jax.random.key(0) if key is None else key)
  constants = parameter_names.without_none(parameter_names.split(start, learn)[0])

  def init(key: jax.Array) -> Params:
    learning = parameter_names.split(model.init(key), learn)[1]
    return parameter_names.without_none(learning)

  apply_with: Callable[..., jax.Array] | None = None
  if (whole_apply := model.apply_with) is not None:

    def apply_with(params: Params, x: jax.Array, multiply: Any) -> jax.Array:
      return whole_apply(tree.merge(constants, params), x, multiply)

  apply_train: Callable[..., jax.Array] | None = None
  if (drawing := model.apply_train) is not None:

    def apply_train(params: Params, x: jax.Array, *more: jax.Array) -> Any:
      return drawing(tree.merge(constants, params), x, *more)

  apply = _Completed(model, constants, learn)
  return model._replace(
    init=init, apply=apply, apply_with=apply_with, apply_train=apply_train, layers=()
  )


def whole_model(model: Model) -> Model:
  """The model with all its layers as parameters; itself but for one of `train_only`."""
  return model.apply.whole if isinstance(model.apply, _Completed) else model


def trained_part(model: Model, params: Params) -> Params:
  """The parameters of `whole_model`, or of a stack of them, that train."""
  if not isinstance(model.apply, _Completed):
    return params
  learning = parameter_names.split(params, model.apply.learn)[1]
  return parameter_names.without_none(learning)


def with_constants(model: Model, used: ClientModels) -> ClientModels:
  """The models of clients for `whole_model`, from those of the part that trains."""
  if not isinstance(model.apply, _Completed):
    return used
  constants = jax.device_get(model.apply.constants)
  personal = as_arrays(used.personal)
  count = used.num_models() or 1
  copies = jax.tree.map(lambda x: np.repeat(x[None], count, axis=0), constants)
  # Each of the two trees holds None in place of what the other has.
  absent = jax.tree.map(lambda _: None, constants)
  if used.shared is None:
    shared = tree.merge(jax.tree.map(lambda _: None, personal), copies)
    return used._replace(shared=shared, personal=tree.merge(personal, absent))
  if personal is not None:
    personal = tree.merge(personal, absent)
  return used._replace(shared=tree.merge(used.shared, copies), personal=personal)
