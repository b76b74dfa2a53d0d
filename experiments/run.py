r"""Runs one method on one data set.

  fesem-run
  fesem-run --algorithm=fed_avg --partition='dirichlet(0.1)'
  fesem-run --algorithm=ifca --num_clusters=4 --partition=rotated \
      --model=small_cnn --rounds=50 --clients_per_round=20 --workdir=runs/ifca
  fesem-run --dataset='npz(mine.npz)' --model=my_models:net --seed=1

The workdir gets metrics.jsonl, summary.json, clients.csv, models.npz and the page
report.html. The same command again continues where it stopped.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags, logging

from fesem_jax import algorithms
from fesem_jax.analysis import tables
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.loop import Planned
from fesem_jax.core import placement, sharding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.selection import counted
from fesem_jax.data.attacks import honest
from fesem_jax.run import programs
from fesem_jax.run.callbacks import BestRound
from fesem_jax.run.results import curves, files
from fesem_jax.run.results.files import add_to_summary
from fesem_jax.run.results.frames import Recorded, joined
from fesem_jax.run.results.result import Result
from fesem_jax.run.simulation import run_one
from fesem_jax.run.spec import Spec
from fesem_jax.utils import processes
from fesem_jax.utils.display import printable

from . import flags as experiment_flags
from . import methods, pages
from .build import (
  LoadedData,
  build_callbacks,
  build_local,
  build_model,
  build_selection,
  data_of,
  depends_on_seed,
  file_digests,
)
from .launch import launch
from .start import no_positional, start


def run(
  config: dict[str, Any],
  machine: dict[str, Any],
  workdir: pathlib.Path,
  **options: Any,
) -> Result:
  """Carries out a configuration in a workdir; for the arguments, see `plan`."""
  planned = plan(config, machine, workdir, **options)
  result = run_one(planned.spec)
  planned.after(result)
  return result


def plan(
  config: dict[str, Any],
  machine: dict[str, Any],
  workdir: pathlib.Path,
  *,
  say: Callable[[str], None] = print,
  tuned: Sequence[str] = (),
  make_portrait: bool = True,
  loaded: LoadedData | None = None,
) -> Planned:
  """Prepares a configuration for its run in a workdir.

  Args:
    config: from `flags.configuration`.
    machine: from `flags.machine`.
    workdir: made if absent.
    say: prints a line on what is run.
    tuned: flags that differ between runs that share their programs.
    make_portrait: whether the workdir gets what figures of clients need.
    loaded: data of other runs with data in common; those of this run are added.
  """
  quiet = machine.get('quiet')
  watchers = build_callbacks(machine, config)
  targets = curves.targets(machine.get('target') or [])
  config = config | file_digests(config)
  if config['lr_schedule'] == 'cosine':  # Over the rounds of its first call.
    config['lr_schedule'] = f'cosine:{config["rounds"]}'
  phases, unseen, validation = data_of(
    config, machine, {} if loaded is None else loaded
  )
  (_, train, test), *later = phases
  if validation is not None:
    best = BestRound(validation, config['stop_after'], machine.get('save_models'))
    watchers = [best, *watchers]
  model = build_model(config, train)

  def make(**values: Any) -> Algorithm:
    changed = config | values
    return methods.configured(changed, build_local(changed, model, train, machine))

  selected = counted(build_selection(config, train.num_clients), train.num_clients)
  personal = [
    config[n] for n in ('algorithm', 'model') if methods.is_user_function(config[n])
  ]
  config |= {'own_code': personal} if personal else {}  # Programs are compared then.
  # Layers that are drawn and do not train are part of the method's programs.
  seed = config['seed'] if depends_on_seed(config) else None
  values = {name: config[name] for name in tuned if name in config}
  fixed = {n: x for n, x in (config | {'seed': seed}).items() if n not in values}
  shapes = train.num_clients, train.num_classes, train.example_shape
  method = json.dumps([fixed, machine], sort_keys=True, default=str), *shapes
  key = 'algorithm', method, json.dumps(values)
  algorithm = programs.once(key, lambda: make(**values))
  task = algorithm.local.model.measured_as
  curves.check_targets(targets, task.primary)
  placed = placement.chosen(
    machine['data_placement'],
    placement.bytes_of(train, test),
    algorithm.local.mesh,
    everyone=not 0 < selected[0] < train.num_clients,
  )
  if not quiet:
    if (done := files.saved_rounds(workdir)) and done[-1] < config['rounds']:
      say(f'{workdir}: continues after round {done[-1]}')
    say(_described(config, train, test, algorithm.local))
  names = {field.name for field in dataclasses.fields(Spec)}
  arguments = {n: x for n, x in (config | machine).items() if n in names} | {
    'algorithm': algorithm, 'make': make, 'values': values, 'method': method,
    'train': train, 'test': test, 'unseen': unseen, 'later_phases': later,
    'clients_per_round': selected[0], 'selection': selected[1],
    'data_placement': placed, 'workdir': workdir, 'config': config,
    'make_portrait': make_portrait, 'progress': not quiet, 'callbacks': watchers,
  }  # fmt: skip

  def after(result: Result) -> None:
    if targets or result.summary.get('rounds_to_target'):
      history = curves.of_last_data(result.history, result.summary)
      reached = curves.rounds_to_targets(history, targets, task)
      add_to_summary(workdir, result.summary, {'rounds_to_target': reached})
    if config['evaluate_on'] != 'test':
      add_to_summary(workdir, result.summary, {'evaluated_on': 'validation'})

  return Planned(Spec(**arguments), after)


def _described(
  config: dict[str, Any],
  train: FederatedData,
  test: FederatedData,
  local: LocalTraining,
) -> str:
  """The method, data and model of a run in a line."""
  model = jax.eval_shape(local.model.init, jax.random.key(0))
  size = sum(x.size for x in jax.tree.leaves(model))
  bad = ''
  if (good := honest(train)) is not None:
    bad = f', {(~good).sum()} of them bad ({config["attack"]})'
  return (
    f'{config["algorithm"]} on {config["dataset"]}: {train.num_clients} clients{bad}, '
    f'{len(train.y):,} training and {len(test.y):,} {config["evaluate_on"]} examples, '
    f'{config["model"]} of {size:,} parameters, {local.mesh.size} '
    f'{jax.default_backend()} device(s)'
  )


def default_workdir(config: dict[str, Any]) -> pathlib.Path:
  """runs/ALGORITHM[K]_DATASET_PARTITION_seedN."""
  method = f'{config["algorithm"]}{config.get("num_clusters") or ""}'
  method = method.replace(':', '_')
  dataset = config['dataset'].replace(':', '_').replace('/', '_')
  where = f'{dataset}_{config["partition"] or "default"}'
  return pathlib.Path('runs') / f'{method}_{where}_seed{config["seed"]}'


def chosen_configuration() -> dict[str, Any]:
  """The configuration of the command line."""
  f = flags.FLAGS
  name, values = methods.parse_method(f.algorithm)
  options = {n: x for n, x in values.items() if n in methods.options(name)}
  options = experiment_flags.chosen_options() | options
  return experiment_flags.configuration(name, options) | values


def main(argv: list[str]) -> int:
  no_positional(argv)
  f = flags.FLAGS
  if f.local:
    return launch(f.num_processes, sys.argv[1:])
  group = processes.Group(f.coordinator_address, f.process_id, f.num_processes)
  sharding.setup_devices(f.num_devices, group)
  if not processes.is_first():
    logging.set_verbosity(logging.ERROR)
  config = chosen_configuration()
  workdir = pathlib.Path(f.workdir) if f.workdir else default_workdir(config)
  result = run(config, experiment_flags.machine(), workdir, say=_say)
  shown = {'report': f.report, 'columns': tuple(tables.COLUMNS)}
  recorded = Recorded.of(result, f.algorithm.strip(), config['seed'], config)
  table = Comparison(joined([recorded]), **shown).table
  _say(f'\n{table}\n')
  if (ended := result.summary.get('ended', 'finished')) != 'finished':
    _say(f'Ended after round {result.summary["rounds"]}: {printable(ended, 100)}')
  _say(f'In {workdir}; figures: fesem-report {workdir} --figures=DIR')
  if processes.is_first():
    print(pages.written(workdir))
  return 0


def _say(text: str) -> None:
  """Prints a text in the first process."""
  if processes.is_first():
    print(text)


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define()
  experiment_flags.define('processes')
  flags.adopt_module_key_flags(experiment_flags)
  words = f'Method, of {", ".join(algorithms.METHODS)}, or MODULE:FUNCTION.'
  flags.DEFINE_string('algorithm', 'fesem', words)
  words = 'Folder of the run; default: runs/METHOD_DATASET_PARTITION_seedN.'
  flags.DEFINE_string('workdir', '', words)


if __name__ == '__main__':
  define_flags()
  start(main)
