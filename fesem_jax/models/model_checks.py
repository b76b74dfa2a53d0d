"""Models and local training, traced once before a run computes anything."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Model, Params
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import check


def trace_local(local: LocalTraining, train: FederatedData) -> None:
  """Traces the model on two examples of the data, and a step of the optimizer."""
  model = local.model
  check_model(model, train.example_shape, train.num_classes, train.task)
  params = jax.eval_shape(model.init, jax.random.key(0))
  state = jax.eval_shape(local.optimizer.init, params)
  jax.eval_shape(local.optimizer.update, params, state, params)


def check_model(
  model: Model,
  example_shape: Sequence[int],
  num_classes: int,
  task: str = CLASSIFICATION.name,
  named: str = 'model',
) -> None:
  """Traces a model with two examples; `UserError` unless it fits shape and task."""
  of = model.task
  check(of.name == task, f'{named}: made for {of.name}; the data are for {task}')
  params, shape = check_parameters(model, named), tuple(example_shape)
  x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
  y = jax.ShapeDtypeStruct(of.target_shape(2, shape, num_classes), of.target_dtype)
  outputs = jax.eval_shape(model.apply, params, x)
  needed = of.output_shape(2, shape, num_classes)
  fits = outputs.shape == needed
  check(fits, f'{named}: two examples give outputs {outputs.shape}; need {needed}')
  jax.eval_shape(model.loss, outputs, y)


def check_parameters(model: Model, named: str = 'model') -> Params:
  """The shapes of a model's parameters; `UserError` unless all are float32."""
  params = jax.eval_shape(model.init, jax.random.key(0))
  for path, leaf in jax.tree.leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    valid = leaf.dtype == jnp.float32
    check(valid, f'{named}: parameter {name} is {leaf.dtype}; must be float32')
  return params
