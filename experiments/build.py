"""Data, model and local training that a configuration names."""

import csv
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from fesem_jax import data, models
from fesem_jax.core import selection, sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, Machine, local_training
from fesem_jax.core.selection import Selection
from fesem_jax.core.sending import Sends, chained
from fesem_jax.core.types import Model
from fesem_jax.data import attacks, expressions
from fesem_jax.data.expressions import split_call
from fesem_jax.models.initializers import INITIALIZERS
from fesem_jax.models.model_checks import check_model, check_parameters
from fesem_jax.models.starting import parameters_named, start_from, train_only
from fesem_jax.run.callbacks import Costs, loggers
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.configuration import digest_of_data
from fesem_jax.run.results.result import load_run
from fesem_jax.training.augmentation import augmentation
from fesem_jax.training.compression import compression
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.progress_lines import shown, waiting_for
from fesem_jax.utils.safe_files import read_npz, reading

from . import flags as experiment_flags
from .methods import is_user_function, load
from .options import OPTIONS

# Training and test split of clients that are set aside.
Unseen = tuple[FederatedData, FederatedData] | None
# Splits of each phase, clients that are set aside, and validation examples.
Roles = tuple[list[data.Phase], Unseen, FederatedData | None]
# The data of runs, by what decides them in a configuration.
LoadedData = dict[str, Roles]

# Methods whose centers start as several random models.
_SEVERAL_STARTS = ('hypo_cluster', 'fed_em', 'fed_rc', 'fed_soft')


def load_data(
  config: dict[str, Any], data_dir: str = ''
) -> tuple[FederatedData, FederatedData]:
  """Two splits, to train and to measure on, that a configuration names."""
  drifts = config['drift_rounds']
  check(not drifts, 'drift_rounds: this command takes no data that change')
  [(_, train, test)] = load_phases(config, data_dir)
  return train, test


_digests: dict[str, str] = {}


def load_phases(config: dict[str, Any], data_dir: str = '') -> list[data.Phase]:
  """The splits of `load_data` from round 1 on, and of later rounds that change them."""
  chosen = experiment_flags.data_choice(config)
  chosen['ignore_checks'] = experiment_flags.machine().get('ignore_checks', ())
  phases = data.load_phases(data_dir=data_dir, **chosen)
  if is_user_function(config['dataset']):  # Methods of a comparison share data.
    text = json.dumps(chosen, sort_keys=True, default=str)
    digest = digest_of_data(*phases[0][1:])
    same = _digests.setdefault(text, digest) == digest
    name = config['dataset']
    check(same, f'dataset: {name} is not reproducible; seed its generator')
  if config['evaluate_on'] != 'validation':
    return phases
  seed = config['seed']  # The same examples in all phases.
  return [data.Phase(p.first_round, *data.hold_out(p.train, seed)) for p in phases]


def data_of(
  config: dict[str, Any], machine: dict[str, Any], loaded: LoadedData
) -> Roles:
  also = 'evaluate_on', 'unseen_fraction', 'attack', 'attack_fraction', 'stop_after'
  chosen = {name: config.get(name) for name in also}
  chosen |= experiment_flags.data_choice(config)
  chosen['groups'] = config['algorithm'] == 'oracle'
  key = json.dumps(chosen, sort_keys=True, default=str)
  if key not in loaded:
    progress = not machine.get('quiet')
    with shown(progress), waiting_for(f'loading {config["dataset"]}'):
      phases = load_phases(config, machine['data_dir'])
    loaded[key] = _with_roles(config, phases)
  return loaded[key]


def _with_roles(config: dict[str, Any], phases: list[data.Phase]) -> Roles:
  unseen, validation = None, None
  seed, drifts = config['seed'], len(phases) > 1
  for name in ('unseen_fraction', 'stop_after'):
    check(not (config.get(name) and drifts), f'{name}: excludes drift_rounds')
  if fraction := config['unseen_fraction']:
    seen, unseen = data.hold_out_clients(*phases[0][1:], fraction, seed)
    phases = [data.Phase(1, *seen)]
  if config.get('stop_after'):
    [(_, train, test)] = phases
    train, validation = data.hold_out(train, seed)
    phases = [data.Phase(1, train, test)]
  attack = config['attack'], config['attack_fraction']
  phases = [p._replace(train=attacks.apply(p.train, *attack, seed)) for p in phases]
  if config['algorithm'] == 'oracle':
    phases = data.phases_with_true_groups(phases)
  return phases, unseen, validation


def data_of_run(
  workdir: pathlib.Path, config: dict[str, Any], data_dir: str
) -> list[FederatedData]:
  """Splits of a run, from its config.json, and of clients that it set aside."""
  phases, unseen, _ = data_of(config, {'data_dir': data_dir, 'quiet': True}, {})
  splits = [*phases[0][1:], *(unseen or ())]
  if digest_of_data(*splits) != config['data_digest']:
    raise UserError(f'data_dir: the data are not those of {workdir}; name theirs')
  return splits


def build_model(config: dict[str, Any], train: FederatedData) -> Model:
  """The model that a configuration names, its start, and the layers that train."""
  model = INITIALIZERS[config['initializer']](_model(config, train))
  source, only = config.get('init_from', ''), config.get('init_layers', [])
  if source:
    model = start_from(model, _weights(source), 'init_from', only)
  learn = parameters_named(model, config.get('train_layers') or ['*'], 'train_layers')
  several = config['algorithm'] in _SEVERAL_STARTS
  if source and (several or config.get('init_models') == 'by_loss'):
    loaded = parameters_named(model, only or ['*'], 'init_layers')
    differ = not set(learn) <= set(loaded)
    check(differ, 'init_from: all centers would start alike; name init_layers')
  if len(learn) < len(jax.tree.leaves(check_parameters(model))):
    return train_only(model, learn, jax.random.key(config['seed']))
  return model


def _model(config: dict[str, Any], train: FederatedData) -> Model:
  shape, task = (train.example_shape, train.num_classes), train.task
  if is_user_function(config['model']):
    return own_model(config['model'], *shape, task)
  return models.build(config['model'], *shape, config['hidden'], task=task)


def own_model(
  text: str, example_shape: tuple[int, ...], num_classes: int, task: str
) -> Model:
  """The model that a function of the user's own, an expression, builds."""
  name, _ = split_call(text)
  build = functools.partial(load(name), example_shape, num_classes)
  (model,) = expressions.build(text, {name: build}, 'model')
  if not isinstance(model, Model):
    model = models.from_flax(model, example_shape, task=task)
  check_model(model, example_shape, num_classes, task, 'model')
  return model


def depends_on_seed(config: dict[str, Any]) -> bool:
  """True if a layer that does not train may have been drawn."""
  drawn = not config.get('init_from') or config.get('init_layers')
  return bool(config.get('train_layers') and drawn)


def _weights(source: str) -> dict[str, np.ndarray]:
  """Path of each parameter -> its array, from a workdir, RUN:K or a file."""
  folder, cluster = pathlib.Path(source), None
  if not folder.exists() and (match := re.fullmatch(r'(.+):(\d{1,9})', source)):
    folder, cluster = pathlib.Path(match[1]), int(match[2])
  if not folder.is_dir():
    return {name.replace('.', '/'): x for name, x in read_npz(folder).items()}
  deployed = load_run(folder).deployed
  count = deployed.num_models
  check(count, f'init_from: {folder} has personal models; use Run.save_model')
  single = cluster is not None or count == 1
  check(single, f'init_from: {folder} has {count} centers; name one, as {folder}:0')
  return {path: np.asarray(x[cluster or 0]) for path, x in deployed.shared.items()}


def file_digests(config: dict[str, Any]) -> dict[str, str]:
  """Digests of files that --init_from and --select read, which must not change."""
  digests = {}
  if config.get('init_from'):
    digest = hashlib.sha256()
    for path, x in sorted(_weights(config['init_from']).items()):
      digest.update(f'{path} {x.dtype} {x.shape}'.encode())
      digest.update(np.ascontiguousarray(x).tobytes())
    digests['init_digest'] = digest.hexdigest()[:16]
  kind, _, path = config.get('select', '').partition(':')
  if kind == 'trace':
    content = pathlib.Path(path).read_bytes()
    digests['select_digest'] = hashlib.sha256(content).hexdigest()[:16]
  return digests


def build_selection(config: dict[str, Any], num_clients: int) -> int | Selection:
  """The `clients_per_round` of `simulate` that a configuration names, of M clients."""
  text = config.get('select', 'uniform')
  count = selection.cohort_size(config['clients_per_round'], num_clients)
  kind, _, value = text.partition(':')
  if text == 'uniform':
    return count
  if kind == 'power_of_choice':
    fits = value.isdecimal() and count
    check(fits, 'select: power_of_choice:CANDIDATES needs clients_per_round')
    return selection.power_of_choice(count, candidates=int(value))
  expected = 'uniform, power_of_choice:CANDIDATES or trace:FILE'
  check(kind == 'trace' and value, f'select: unknown {text!r}; expected {expected}')
  with reading(value), pathlib.Path(value).open(encoding='utf-8-sig') as file:
    rows = [
      (row['client'], float(row['from']), float(row['to']))
      for row in csv.DictReader(file)
    ]
    return selection.available(count, rows)


def build_callbacks(
  machine: dict[str, Any], config: dict[str, Any] | None = None
) -> list[Callback]:
  """New callbacks for a run: the user's own, then those that record and log."""
  chosen: list[Callback] = []
  for name in machine.get('callbacks') or []:
    check(is_user_function(name), f'callbacks: {name!r} is not MODULE:FUNCTION')
    result = load(name)()
    listed = list(result) if isinstance(result, list | tuple) else [result]
    fits = all(isinstance(callback, Callback) for callback in listed)
    check(fits, f'callbacks: {name} returned no Callback')
    chosen += listed
  if profile := (config or {}).get('device_profile'):
    chosen.append(Costs(profile))
  return chosen + loggers.build(machine.get('log_to') or [])


def build_schedule(text: str, rounds: int) -> Callable[[Any], Any] | None:
  """The factor of --learning_rate by round, from 0; None is constant."""
  name, *texts = text.split(':')
  if text == 'constant':
    return None
  try:
    numbers = [float(x) for x in texts] or [float(rounds)] * (name == 'cosine')
    positive = all(0 < x < 2**31 for x in numbers)
    if name == 'cosine' and len(numbers) == 1 and positive:
      return optax.cosine_decay_schedule(1.0, *numbers)
    if name == 'exponential' and len(numbers) == 1 and positive:
      return optax.exponential_decay(1.0, 1, *numbers)
    if name == 'step' and len(numbers) == 2 and positive and int(texts[0]):
      return optax.exponential_decay(1.0, *numbers, staircase=True)
  except ValueError:
    pass
  expected = OPTIONS['lr_schedule'].words
  raise UserError(f'lr_schedule: unknown {text!r}; expected {expected}')


def build_sends(config: dict[str, Any]) -> Sends | None:
  """Noise and compression of what clients send; None if they send models as trained."""
  changes = []
  for name in () if config['dp'] else ('dp_clip', 'dp_noise_multiplier'):
    check(not config[name], f'{name}: needs dp; choose dp=server or dp=client')
  if config['dp']:
    alike = config.get('weighting', 'uniform') == 'uniform'
    check(config['dp'] != 'server' or alike, 'dp: server needs weighting=uniform')
    check(config['dp_clip'], 'dp: needs dp_clip, the L2 norm of a clipped change')
    noise = config['dp_clip'], config['dp_noise_multiplier']
    options = {'where': config['dp'], 'delta': config['dp_delta']}
    changes.append(differential_privacy(*noise, **options))
  if config['compress']:
    changes.append(compression(config['compress']))
  return chained(*changes) if changes else None


def build_local(
  config: dict[str, Any],
  model: Model,
  train: FederatedData,
  machine: dict[str, Any],
  mesh: Mesh | None = None,
) -> LocalTraining:
  """The local training that a configuration names; of `train`, the shapes suffice."""
  placed = Machine(
    mesh or sharding.client_mesh(machine['num_devices']),
    machine['clients_per_chunk'],
    machine['shared_start'],
    config['precision'],
    machine['data_placement'],
  )
  names = 'optimizer', 'learning_rate', 'momentum', 'weight_decay', 'clip_norm'
  local = local_training(
    model,
    local_optimizer(**{name: config[name] for name in names}),
    batch_size=config['batch_size'],
    epochs=config['local_epochs'],
    lr_schedule=build_schedule(config['lr_schedule'], config['rounds']),
    sends=build_sends(config),
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
