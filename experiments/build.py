"""Data, model and local training that a configuration names."""

import functools
import pathlib
from typing import Any

import optax
from jax.sharding import Mesh

from fesem_jax import data, models
from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, Machine, local_training
from fesem_jax.core.types import Model
from fesem_jax.data import attacks
from fesem_jax.models.initializers import INITIALIZERS
from fesem_jax.models.model_checks import check_model
from fesem_jax.run.configuration import digest_of_data
from fesem_jax.training.augmentation import augmentation
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.utils import expressions
from fesem_jax.utils.errors import UserError, argument, check
from fesem_jax.utils.expressions import split_call

from . import flags as experiment_flags
from . import model_starts, plugins, schedules, sends


def load_data(
  config: dict[str, Any], data_dir: str = ''
) -> tuple[FederatedData, FederatedData]:
  """Two splits, to train and to measure on, that a configuration names."""
  drifts = config['drift_rounds']
  check(not drifts, 'drift_rounds: this command takes no data that change')
  [(_, train, test)] = load_phases(config, data_dir)
  return train, test


def load_phases(config: dict[str, Any], data_dir: str = '') -> list[data.Phase]:
  """The splits of `load_data` from round 1 on, and of later rounds that change them."""
  chosen = experiment_flags.data_choice(config)
  chosen['ignore_checks'] = experiment_flags.machine().get('ignore_checks', ())
  phases = data.load_phases(data_dir=data_dir, **chosen)
  if plugins.is_own(config['dataset']):
    plugins.check_reproducible(chosen, digest_of_data(*phases[0][1:]))
  if config['evaluate_on'] != 'validation':
    return phases
  seed = config['seed']  # The same examples in all phases.
  return [data.Phase(p.first_round, *data.hold_out(p.train, seed)) for p in phases]


def data_of_run(
  workdir: pathlib.Path, config: dict[str, Any], data_dir: str
) -> list[FederatedData]:
  """Both splits of a run of this version, from its config.json.

  The splits of the clients that it set aside follow, if it did. Raises `UserError` if
  the configuration names no data, or others are found.
  """
  train, test = load_data(config, data_dir)
  splits, fraction, seed = [train, test], config['unseen_fraction'], config['seed']
  if fraction:
    seen, unseen = data.hold_out_clients(train, test, fraction, seed)
    splits = [*seen, *unseen]
  if config['stop_after']:
    splits[0], _ = data.hold_out(splits[0], seed)
  attack = config['attack'], config['attack_fraction']
  splits[0] = attacks.apply(splits[0], *attack, seed)
  if digest_of_data(*splits) != config['data_digest']:
    raise UserError(f'data_dir: the data are not those of {workdir}; name theirs')
  return splits


def build_model(config: dict[str, Any], train: FederatedData) -> Model:
  """The model that a configuration names, with the start that it names."""
  model = INITIALIZERS[config['initializer']](_model(config, train))
  return model_starts.started(config, model)


def _model(config: dict[str, Any], train: FederatedData) -> Model:
  if plugins.is_own(config['model']):
    shape = train.example_shape, train.num_classes, train.task
    return own_model(config['model'], *shape)
  return models.build(
    config['model'],
    train.example_shape,
    train.num_classes,
    [int(width) for width in config['hidden']],
    task=train.task,
  )


def own_model(
  text: str,
  example_shape: tuple[int, ...],
  num_classes: int,
  task: str,
) -> Model:
  """The model that a function of the user's own, an expression, builds.

  Raises `UserError` if it builds none, or one that does not fit the data.
  """
  name, _ = split_call(text)
  build = functools.partial(plugins.load(name), example_shape, num_classes)
  (model,) = expressions.build(text, {name: build}, 'model')
  if not isinstance(model, Model):
    model = models.from_flax(model, example_shape, task=task)
  check_model(model, example_shape, num_classes, task, argument('model', name))
  return model


def _optimizer(config: dict[str, Any]) -> optax.GradientTransformation:
  """The local optimizer that a configuration names."""
  return local_optimizer(
    config['optimizer'],
    config['learning_rate'],
    momentum=config['momentum'],
    weight_decay=config['weight_decay'],
    clip_norm=config['clip_norm'],
  )


def build_local(
  config: dict[str, Any],
  model: Model,
  train: FederatedData,
  machine: dict[str, Any],
  mesh: Mesh | None = None,
) -> LocalTraining:
  """The local training that a configuration names.

  Of `train`, the shapes suffice. Without a mesh it takes the devices of `machine`.
  """
  placed = Machine(
    mesh or sharding.client_mesh(machine['num_devices']),
    machine['clients_per_chunk'],
    machine['shared_start'],
    config['precision'],
  )
  of_rounds = schedules.resolved(config['lr_schedule'], config['rounds'])
  local = local_training(
    model,
    _optimizer(config),
    batch_size=config['batch_size'],
    epochs=config['local_epochs'],
    lr_schedule=schedules.build(of_rounds),
    sends=sends.build(config),
    machine=placed,
  )
  schedule = local.schedule
  if steps := config['local_steps']:
    schedule = schedule._replace(epochs=1, steps=steps)
  return local._replace(
    schedule=schedule,
    batch_stats=config['batch_stats'],
    keep_optimizer_state=config['keep_optimizer_state'],
    dropout_rate=config['dropout_rate'],
    augmentation=augmentation(config['augment'], train.example_shape),
  )
