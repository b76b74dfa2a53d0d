"""Data, model and local training that a configuration names."""

import itertools
import math
import pathlib
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from fesem_jax import data, models
from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, Machine, local_training
from fesem_jax.core.types import Model
from fesem_jax.data.corruption import corrupted
from fesem_jax.models.initializers import INITIALIZERS
from fesem_jax.models.model_checks import check_model
from fesem_jax.run import clients_per_chunk
from fesem_jax.run.resume import digest_of_data
from fesem_jax.training.augmentation import augmentation
from fesem_jax.training.optimizers import AdamOptions, local_optimizer
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.stored_rows import blocks

from . import client_work, model_starts, plugins, schedules, sends, unused
from . import flags as experiment_flags

# Beyond any use; larger numbers would only run out of memory or of bits later.
_MAX_INTEGER = 2**31 - 1
_MAX_WEIGHTS, _MAX_LAYERS = 2**31, 100


def check_numbers(values: dict[str, Any]) -> None:
  """Raises `UserError` on a flag that is infinite, not a number, or a huge one."""
  for name, value in values.items():
    if isinstance(value, float) and not math.isfinite(value):
      raise UserError(f'{argument(name, value)} must be a finite number.')
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
      raise UserError(
        f'{argument(name, value)} must lie between {-_MAX_INTEGER} and {_MAX_INTEGER}.'
      )


def load_data(
  config: dict[str, Any], data_dir: str = ''
) -> tuple[FederatedData, FederatedData]:
  """Two splits, to train and to measure on, that a configuration names."""
  if rounds := experiment_flags.filled(config)['drift_rounds']:
    raise UserError(
      f'{argument("drift_rounds", ",".join(rounds))} gives data that change over '
      'rounds, which fesem-run, fesem-compare and fesem-sweep take; this command does '
      'not.'
    )
  [(_, train, test)] = load_phases(config, data_dir)
  return train, test


def load_phases(config: dict[str, Any], data_dir: str = '') -> list[data.Phase]:
  """The splits of `load_data` from round 1 on, and of later rounds that change them."""
  chosen = unused.without_unused(experiment_flags.data_choice(config))
  chosen['ignore_checks'] = experiment_flags.machine().get('ignore_checks', ())
  phases = data.load_phases(chosen.pop('dataset'), data_dir=data_dir, **chosen)
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
  needed = [*experiment_flags.common_names(), 'algorithm', 'data_digest']
  config = experiment_flags.filled(config)
  if lacking := [name for name in needed if name not in config]:
    raise UserError(
      f'{workdir / "config.json"} has no {lacking[0]}; only runs of fesem-run and '
      'fesem-compare of this version have all of it.'
    )
  train, test = load_data(config, data_dir)
  splits, fraction, seed = [train, test], config['unseen_fraction'], config['seed']
  if fraction:
    seen, unseen = data.hold_out_clients(train, test, fraction, seed)
    splits = [*seen, *unseen]
  if config['stop_after']:
    splits[0], _ = data.hold_out(splits[0], seed)
  splits[0] = corrupted(splits[0], config['corrupt'], config['corrupt_fraction'], seed)
  if digest_of_data(*splits) != config['data_digest']:
    mend = 'name the folder that it was run with as --data_dir'
    if plugins.is_own(config['dataset']):
      mend = f'{config["dataset"]} must return the same arrays at each call'
    raise UserError(
      f'The data are not those of {workdir}: examples, labels or clients differ; '
      f'{mend}.'
    )
  return splits


def build_model(config: dict[str, Any], train: FederatedData) -> Model:
  """The model that a configuration names, with the start that it names."""
  model = INITIALIZERS[config['initializer']](_model(config, train))
  return model_starts.started(config, model)


def _model(config: dict[str, Any], train: FederatedData) -> Model:
  if plugins.is_own(config['model']):
    shape = train.example_shape, train.num_classes, train.task
    return own_model(config['model'], config['model_options'], *shape)
  try:
    hidden = [int(width) for width in config['hidden']]
  except ValueError:
    hidden = [0]
  chosen = printable(','.join(config['hidden']))
  if min(hidden, default=1) < 1:
    raise UserError(f'--hidden={chosen} must be positive widths, e.g. 200,100.')
  widths = [math.prod(train.example_shape), *hidden, train.num_classes]
  size = sum(a * b for a, b in itertools.pairwise(widths))
  if config['model'] == 'mlp' and (len(hidden) > _MAX_LAYERS or size > _MAX_WEIGHTS):
    raise UserError(
      f'--hidden={chosen} makes more than {_MAX_LAYERS} layers or {_MAX_WEIGHTS:,} '
      'weights; choose fewer or smaller widths.'
    )
  if config['model'] in models.OF_TOKENS:
    _check_tokens(config, train)
  options = config.get('model_options')  # Older configurations have none.
  model = models.build(
    config['model'],
    train.example_shape,
    train.num_classes,
    hidden,
    task=train.task,
    options=options,
  )
  if options:
    _check_size(options, model)
  return model


def _check_size(options: dict[str, int], model: Model) -> None:
  """Raises `UserError` if a model is too large for any device."""
  shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
  size = sum(math.prod(x.shape) for x in shapes)
  if size > _MAX_WEIGHTS:
    given = ','.join(f'{name}={value}' for name, value in options.items())
    of = f'--model_options={given} makes' if given else 'The model has'
    raise UserError(
      f'{of} {size:,} weights, more than {_MAX_WEIGHTS:,}; choose smaller layers.'
    )


def _check_tokens(config: dict[str, Any], train: FederatedData) -> None:
  """Raises `UserError` unless examples are sequences of tokens in 0..L-1."""
  named, classes = argument('model', config['model']), train.num_classes
  mend = 'choose another model, or data of tokens.'
  if isinstance(train.x, jax.ShapeDtypeStruct):  # A plan knows shapes alone.
    return
  for _, rows in blocks(train.x):
    rows = rows * train.scale
    whole = np.all(rows == np.round(rows)) and np.all(rows >= 0)
    if whole and rows.max() >= classes:
      # Data of one's own, whose `y` holds fewer of the tokens than `x`.
      mend = 'choose another model, or give the data the array num_classes.'
    if not whole or rows.max() >= classes:
      raise UserError(
        f'{named} reads tokens, whole numbers in 0..{classes - 1} as there are '
        f'{classes} classes, but --dataset={config["dataset"]} holds others; {mend}'
      )


def own_model(
  name: str,
  options: dict[str, Any],
  example_shape: tuple[int, ...],
  num_classes: int,
  task: str,
) -> Model:
  """The model that a function of the user's own, MODULE:FUNCTION, builds.

  Raises `UserError` if it builds none, or one that does not fit the data.
  """
  build, named = plugins.load('model', name, *plugins.OF_MODEL), argument('model', name)
  with plugins.running('model', name):
    model = build(example_shape, num_classes, **options)
    if not isinstance(model, Model):
      if not callable(model):
        raise UserError(
          f'{named} must return a fesem_jax.Model, a Linen module or a function that '
          f'makes an NNX module; it returns {type(model).__name__}.'
        )
      try:
        model = models.from_flax(model, example_shape, task=task)
      except UserError as e:
        raise UserError(f'{named}: {e}') from e
    check_model(model, example_shape, num_classes, task, named)
  _check_size(options, model)
  return model


def _optimizer(config: dict[str, Any]) -> optax.GradientTransformation:
  """The local optimizer that a configuration names."""
  adam = AdamOptions(config['adam_beta1'], config['adam_beta2'], config['adam_epsilon'])
  return local_optimizer(
    config['optimizer'],
    config['learning_rate'],
    momentum=config['momentum'],
    nesterov=config['nesterov'],
    weight_decay=config['weight_decay'],
    adam=adam,
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

  Of `train`, the shapes suffice unless chunks are to be timed. Without a mesh it takes
  the devices of `machine`.
  """
  config = experiment_flags.filled(config)
  chunk = machine['clients_per_chunk']
  if chunk != 'auto' and not (chunk.isdecimal() and len(chunk) < 10):
    raise UserError(
      f'--clients_per_chunk={chunk} must be a number or auto, of at most 9 digits.'
    )
  placed = Machine(
    mesh or sharding.client_mesh(machine['num_devices']),
    0 if chunk == 'auto' else int(chunk),
    machine['shared_start'],
    config['precision'],
  )
  of_rounds = schedules.resolved(config['lr_schedule'], config['rounds'])
  of_steps = schedules.resolved_local(
    config['local_lr_schedule'], config['local_steps']
  )
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
  if steps := config['local_steps']:  # Then `unused.notes` tells of epochs.
    schedule = schedule._replace(epochs=1, steps=steps)
  work = client_work.read(config['client_work'], schedule, train)
  local = local._replace(
    schedule=schedule if work is None else work.longest(schedule),
    work=work,
    batch_stats=config['batch_stats'],
    keep_optimizer_state=config['keep_optimizer_state'],
    dropout_rate=config['dropout_rate'],
    local_lr_schedule=schedules.build(of_steps, 'local_lr_schedule'),
    augmentation=augmentation(config['augment'], train.example_shape),
  )
  if chunk == 'auto':
    chunk = clients_per_chunk.clients_per_chunk(
      local, train, config['clients_per_round'], machine['data_placement']
    )
    return local._replace(clients_per_chunk=chunk, clients_per_shared_start=chunk)
  return local
