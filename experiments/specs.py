"""Runs of configurations: their specs, and what is added to finished runs."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fesem_jax.analysis.loop import Planned
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.selection import counted
from fesem_jax.data.attacks import honest
from fesem_jax.evaluation import curves
from fesem_jax.run import programs
from fesem_jax.run.callbacks import BestRound
from fesem_jax.run.checkpoint import saved_rounds
from fesem_jax.run.results.files import add_to_summary
from fesem_jax.run.results.result import Result
from fesem_jax.run.simulation import run_one
from fesem_jax.run.spec import Spec
from fesem_jax.utils.errors import check

from . import methods
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

  `tuned` are flags that differ between runs of the same programs, and `loaded` data
  that runs have in common, to which those of this run are added.
  """
  quiet = machine.get('quiet')
  watchers = build_callbacks(machine, config)
  targets = list(dict.fromkeys(float(x) for x in machine.get('target') or [] if x))
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
  is_share = task.primary.percent and max(targets, default=0) > 1
  check(not is_share, f'target: must be at most 1 for {task.primary.label}')
  if not quiet:
    if (done := saved_rounds(workdir)) and done[-1] < config['rounds']:
      say(f'{workdir}: continues after round {done[-1]}')
    say(_described(config, train, test, algorithm.local))
  names = {field.name for field in dataclasses.fields(Spec)}
  arguments = {n: x for n, x in (config | machine).items() if n in names} | {
    'algorithm': algorithm, 'make': make, 'values': values, 'method': method,
    'train': train, 'test': test, 'unseen': unseen, 'later_phases': later,
    'clients_per_round': selected[0], 'selection': selected[1],
    'workdir': workdir, 'config': config, 'make_portrait': make_portrait,
    'progress': not quiet, 'callbacks': watchers,
  }  # fmt: skip

  def after(result: Result) -> None:
    if targets or result.summary.get('rounds_to_target'):
      since = result.summary.get('data_since', 0)
      reached = curves.rounds_to_targets(result.history, targets, task, since)
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
  size, devices = sum(x.size for x in jax.tree.leaves(model)), local.mesh.size
  bad = ''
  if (good := honest(train)) is not None:
    bad = f', {(~good).sum()} of them bad ({config["attack"]})'
  return (
    f'{config["algorithm"]} on {config["dataset"]}: {train.num_clients} clients{bad}, '
    f'{len(train.y):,} training and {len(test.y):,} {config["evaluate_on"]} examples, '
    f'{config["model"]} of {size:,} parameters, {devices} '
    f'{jax.default_backend().upper()} device{"s" * (devices > 1)}'
  )
