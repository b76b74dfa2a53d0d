r"""Runs one method on one data set.

  python -m experiments.run --algorithm=fesem --dataset=digits \
      --partition=rotated --num_clusters=4

The workdir gets config.json, metrics.jsonl, summary.json, clients.csv, clients.npz,
models.npz and checkpoints/. The same command again continues where it stopped. Figures:
python -m experiments.figures WORKDIR.
"""

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import optax
from absl import flags

from experiments import flags as experiment_flags
from experiments import methods, plugins, schedules
from experiments.errors import in_flags
from experiments.start import no_positional, start
from fesem_jax import algorithms, autotune, data, models, sharding
from fesem_jax.base import FederatedData, Model
from fesem_jax.corruption import corrupted, honest
from fesem_jax.data import skew
from fesem_jax.display import shown
from fesem_jax.errors import Diverged, UserError, argument
from fesem_jax.hyperparameters import optimizer
from fesem_jax.method import Algorithm
from fesem_jax.programs import Programs
from fesem_jax.result import Result
from fesem_jax.simulation import simulate
from fesem_jax.training import LocalTraining, local_training

_OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
  'sgd': functools.partial(optimizer, optax.sgd),
  'momentum': functools.partial(optimizer, optax.sgd, momentum=0.9),
  'adam': functools.partial(optimizer, optax.adam),
}


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
  chosen = experiment_flags.data_choice(config)
  train, test = data.load(chosen.pop('dataset'), data_dir=data_dir, **chosen)
  if config['evaluate_on'] == 'validation':
    return data.hold_out(train, config['seed'])
  return train, test


def build_model(config: dict[str, Any], train: FederatedData) -> Model:
  """The model that a configuration names."""
  if plugins.is_own(config['model']):
    return _own_model(config, train)
  try:
    hidden = [int(width) for width in config['hidden']]
  except ValueError:
    hidden = [0]
  chosen = shown(','.join(config['hidden']))
  if min(hidden, default=1) < 1:
    raise UserError(f'--hidden={chosen} must be positive widths, e.g. 200,100.')
  widths = [math.prod(train.example_shape), *hidden, train.num_classes]
  size = sum(a * b for a, b in itertools.pairwise(widths))
  if config['model'] == 'mlp' and (len(hidden) > _MAX_LAYERS or size > _MAX_WEIGHTS):
    raise UserError(
      f'--hidden={chosen} makes more than {_MAX_LAYERS} layers or {_MAX_WEIGHTS:,} '
      'weights; choose fewer or smaller widths.'
    )
  return models.build(config['model'], train.example_shape, train.num_classes, hidden)


def _own_model(config: dict[str, Any], train: FederatedData) -> Model:
  """The model that a function of the user's own builds."""
  build = plugins.load('model', config['model'], *experiment_flags.OWN_MODEL)
  with plugins.running('model', config['model']):
    model = build(train.example_shape, train.num_classes, **config['model_options'])
  named = f'--model={config["model"]}'
  if not isinstance(model, Model):
    raise UserError(
      f'{named} must return a fesem_jax.Model, e.g. of fesem_jax.models.from_flax; it '
      f'returns {type(model).__name__}.'
    )
  example = jax.ShapeDtypeStruct((2, *train.example_shape), jax.numpy.float32)
  with plugins.running('model', config['model']):
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    logits = jax.eval_shape(model.apply, shapes, example)
  if logits.shape != (2, train.num_classes):
    raise UserError(
      f'{named}: two examples have logits of shape {logits.shape}, not '
      f'{(2, train.num_classes)}.'
    )
  return model


def build_local(
  config: dict[str, Any], model: Model, train: FederatedData, machine: dict[str, Any]
) -> LocalTraining:
  """The local training that a configuration names."""
  if not config['learning_rate'] > 0:
    raise UserError(f'--learning_rate={config["learning_rate"]} must be positive.')
  chunk = machine['clients_per_chunk']
  if chunk != 'auto' and not (chunk.isdecimal() and len(chunk) < 10):
    raise UserError(
      f'--clients_per_chunk={chunk} must be a number or auto, of at most 9 digits.'
    )
  local = local_training(
    model,
    _OPTIMIZERS[config['optimizer']](config['learning_rate']),
    num_clients=config['clients_per_round'] or train.num_clients,
    batch_size=config['batch_size'],
    epochs=config['local_epochs'],
    steps=config['local_steps'],
    clients_per_chunk=0 if chunk == 'auto' else int(chunk),
    mesh=sharding.client_mesh(machine['num_devices']),
    dropout_rate=config['dropout_rate'],
    lr_schedule=schedules.build(config['lr_schedule']),
  )
  if chunk == 'auto':
    chunk = autotune.clients_per_chunk(local, train, config['clients_per_round'])
    return local._replace(clients_per_chunk=chunk)
  return local


def run(
  config: dict[str, Any],
  machine: dict[str, Any],
  workdir: pathlib.Path,
  *,
  say: Callable[[str], None] = print,
  programs: Programs | None = None,
  splits: tuple[FederatedData, FederatedData] | None = None,
  make_portrait: bool = True,
) -> Result:
  """Carries out a configuration in a workdir.

  Args:
    config: from `flags.configuration`.
    machine: from `flags.machine`.
    workdir: made if absent.
    say: where to announce what is run.
    programs: of other seeds of the same configuration.
    splits: to train and to measure on, if not those that the configuration names.
    make_portrait: see `simulate`.

  Raises:
    UserError, Stopped: see `simulate`.
  """
  check_numbers(config | machine)
  config = config | {
    'lr_schedule': schedules.resolved(config['lr_schedule'], config['rounds'])
  }
  train, test = splits or load_data(config, machine['data_dir'])
  unseen = None
  if fraction := config['unseen_fraction']:
    (train, test), unseen = data.hold_out_clients(train, test, fraction, config['seed'])
  corrupt = config['corrupt'], config['corrupt_fraction']
  train = corrupted(train, *corrupt, config['seed'])
  programs = programs or Programs()
  model = build_model(config, train)
  name = config['algorithm']
  options = {option: config[option] for option in methods.options(name)}

  def build() -> Algorithm:
    return methods.build(name, build_local(config, model, train, machine), options)

  but_seed = json.dumps(config | {'seed': None}, sort_keys=True)
  algorithm = programs.once(but_seed, build, train)
  local = algorithm.local
  size = sum(
    x.size for x in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
  )
  counts = skew.label_counts(train)
  unlike = skew.label_skew(counts)
  say(
    f'{name} on {config["dataset"]}: {train.num_clients} clients, '
    f'{len(train.y):,} training and {len(test.y):,} test examples, {config["model"]} '
    f'of {size:,} parameters, label skew {unlike:.2f}, {local.mesh.size} '
    f'{jax.default_backend()} device(s), {local.clients_per_chunk} client(s) side by '
    'side on each'
  )
  if (kept := honest(train)) is not None:
    bad = (~kept).sum()
    say(f'{bad} of {train.num_clients} clients are bad ({config["corrupt"]})')
  notes = [in_flags(n) for n in algorithms.notes(name, options, train.num_clients)]
  lacking, share = skew.classes_never_trained(counts, skew.label_counts(test))
  if lacking:
    say(
      f'Warning: {lacking} of {train.num_clients} clients are measured on classes that '
      f'they have no training examples of, with {100 * share:.1f} % of all examples '
      'that are measured on.'
    )
  for note in notes:
    say(f'Note: {note}')
  result = simulate(
    algorithm,
    train,
    test,
    rounds=config['rounds'],
    seed=config['seed'],
    clients_per_round=config['clients_per_round'],
    eval_every=config['eval_every'],
    finetune_epochs=config['finetune_epochs'],
    patience=config['patience'],
    workdir=workdir,
    config=config,
    checkpoint_every=machine['checkpoint_every'],
    resume=machine['resume'],
    tensorboard=machine['tensorboard'],
    save_models=machine['save_models'],
    make_portrait=make_portrait,
    programs=programs,
    unseen=unseen,
    notes=notes,
  )
  if unseen is not None and result.summary['unseen'] is None:
    say(
      f'Note: the {len(unseen[0].info.names)} clients of --unseen_fraction were not '
      "measured: models, or layers, are each client's own."
    )
  return result


def run_unless_diverged(
  config: dict[str, Any],
  workdir: pathlib.Path,
  what: str,
  programs: Programs,
  **options: Any,
) -> dict[str, Any] | None:
  """The summary of a run announced as `what`; None if it diverged.

  Args:
    config: from `flags.configuration`.
    workdir: made if absent.
    what: is run.
    programs: of other seeds of the same configuration.
    **options: further ones of `run`.
  """

  def say(text):
    return print(f'[{what}] {text}')

  machine = experiment_flags.machine()
  try:
    made = run(config, machine, workdir, say=say, programs=programs, **options)
    return made.summary
  except Diverged as e:
    print(f'{what} diverged: {in_flags(str(e))}')
    return None


def report(result: Result) -> str:
  """The outcome of a run as a few lines of text."""
  summary = result.summary
  columns = ('micro_accuracy', 'micro_f1', 'macro_accuracy', 'macro_f1')
  lines = [' ' * 10 + ''.join(f'{c.replace("_", "-"):>16}' for c in columns)]
  of_honest = summary.get('honest')
  for kind in ('deployed', 'finetuned', 'unseen'):
    if summary[kind] is None:
      continue
    values = ''.join(f'{100 * summary[kind][c]:>14.2f} %' for c in columns)
    lines.append(f'{kind:10}{values}')
  if of_honest:
    kept, of = of_honest['clients'], summary['num_clients']
    lines.append(f'of the {kept} honest clients of {of}:')
    for kind in ('deployed', 'finetuned'):
      values = ''.join(f'{100 * of_honest[kind][c]:>14.2f} %' for c in columns)
      lines.append(f'{kind:10}{values}')
  clusters = summary['clusters']
  if clusters:
    sizes = [size for size in clusters['sizes'] if size]
    line = f'clusters of {", ".join(map(str, sizes))} clients'
    if empty := len(clusters['sizes']) - len(sizes):
      line += f' and {empty} empty'
    if clusters['ari'] is not None:
      line += (
        f'; against the truth ARI {clusters["ari"]:.3f}, NMI {clusters["nmi"]:.3f}'
      )
    if of_honest and of_honest.get('ari') is not None:
      line += f' (of honest clients {of_honest["ari"]:.3f}, {of_honest["nmi"]:.3f})'
    lines.append(line + f'; last move in round {clusters["rounds_to_stable"]}')
  if without := summary['clients_without_test_examples']:
    lines.append(f'{without} clients have no test examples and are left out above')
  if failed := summary.get('finetuning_failed'):
    lines.append(
      f'fine-tuning of {failed} clients diverged; the deployed model counts for them'
    )
  timing = summary['timing']
  if timing['seconds_per_round'] is not None:
    lines.append(
      f'{summary["rounds"]} rounds, {timing["seconds_per_round"]:.3f} s a round, '
      f'{timing["client_steps_per_second"]:,.0f} client steps a second, '
      f'{timing["compile_seconds"]:.1f} s compiling'
    )
  return '\n'.join(lines)


def default_workdir(config: dict[str, Any]) -> pathlib.Path:
  """runs/ALGORITHM[K]_DATASET_PARTITION_seedN."""
  method = f'{config["algorithm"]}{config.get("num_clusters") or ""}'
  method = method.replace(':', '_')
  dataset = config['dataset'].replace(':', '_').replace('/', '_')
  where = f'{dataset}_{config["partition"] or "default"}'
  return pathlib.Path('runs') / f'{method}_{where}_seed{config["seed"]}'


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  options = experiment_flags.chosen_options()
  options |= methods.own_options(f.algorithm, f.algorithm_options)
  config = experiment_flags.configuration(f.algorithm, options)
  workdir = pathlib.Path(f.workdir) if f.workdir else default_workdir(config)
  result = run(config, experiment_flags.machine(), workdir)
  print(report(result))
  print(f'In {workdir}; figures: python -m experiments.figures {workdir}')


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_string(
    'algorithm',
    'fesem',
    f'Method to run, of {", ".join(algorithms.METHODS)}; or MODULE:FUNCTION for one of '
    'your own: FUNCTION(local) returns a fesem_jax.Algorithm.',
  )
  flags.DEFINE_string(
    'algorithm_options',
    '',
    'NAME=VALUE,...: keyword-only arguments of --algorithm=MODULE:FUNCTION.',
  )
  flags.DEFINE_string(
    'workdir', '', 'Folder of the run; default: runs/METHOD_DATASET_PARTITION_seedN.'
  )


if __name__ == '__main__':
  define_flags()
  start(main)
