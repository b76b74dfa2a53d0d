"""Lets new clients join the clusters of finished runs, and measures what they get.

  fesem-run --partition=rotated --unseen_fraction=0.2 --workdir=runs/fesem4
  fesem-adapt runs/fesem4
  fesem-adapt runs/table/fesem*/seed* --output=runs/new_clients

The new clients are those that --unseen_fraction set aside. Each joins a center by its
weights, its direction or its loss, and is measured beside FedAvg and training alone.
The folder of results gets table.md and adapt.json.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

import fesem_jax as fj
from fesem_jax.analysis import joining
from fesem_jax.analysis.tables import mean_and_std
from fesem_jax.core import sharding
from fesem_jax.core.types import Params
from fesem_jax.data import arrangement, placement
from fesem_jax.evaluation import evaluate
from fesem_jax.evaluation.agreement import contingency
from fesem_jax.models.starting import trained_part
from fesem_jax.run.programs import Programs
from fesem_jax.run.workdir import locked
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Column, Table, cell

from . import flags as experiment_flags
from . import methods
from . import run as experiment
from .build import build_local, build_model, data_of_run
from .start import start

ALL = 'all'
Row = dict[str, Any]  # Of a seed, a number of examples and a rule.


class NewClients(NamedTuple):
  """A finished run of a clustered method, and the clients that took no part in it."""

  run: fj.Run
  centers: Params  # [K, ...] that clients of the run deploy
  groups: np.ndarray | None  # [K] true group of most of each center's clients
  train: fj.FederatedData
  test: fj.FederatedData


def load(workdir: pathlib.Path, data_dir: str) -> NewClients:
  """Reads a run, and sets the clients aside that it set aside."""
  run = fj.load_run(workdir)
  unseen = run.config.get('unseen_fraction')
  check(unseen, f'{workdir}: all clients took part; run it with unseen_fraction=0.2')
  train, _, *of_unseen = data_of_run(workdir, run.config, data_dir)
  model, truth = build_model(run.config, train), train.info.clusters
  run, groups = dataclasses.replace(run, model=model), None
  _, centers = joining.used_centers(run, model)
  if truth is not None and run.deployed.choice is not None:
    most = contingency(run.deployed.choice, truth).argmax(axis=1)
    groups = np.unique(truth)[most]
  return NewClients(run, centers, groups, *of_unseen)


def check_one_configuration(runs: Sequence[fj.Run]) -> None:
  """Raises `UserError` unless runs are of one configuration and different seeds."""
  first = runs[0].config
  for run in runs:
    names = (first.keys() | run.config.keys()) - {'seed', 'data_digest', 'own_code'}
    differ = [f'--{n}' for n in sorted(names) if first.get(n) != run.config.get(n)]
    check(not differ, f'{run.workdir}: differs in {", ".join(differ)}')
  seeds = {run.config['seed'] for run in runs}
  check(len(seeds) == len(runs), 'workdir: two runs are of one seed')


def adapt(
  workdirs: Sequence[pathlib.Path],
  out: pathlib.Path | None,
  numbers: Sequence[str],
  machine: dict[str, Any],
) -> list[Row]:
  """Measures the new clients of finished runs, and writes rows and a table.

  The runs in `workdirs` are seeds of one configuration. `out` is the folder of the
  results; None is WORKDIR/adapt of the only run. `numbers` are of examples, or 'all'.
  `machine` is from `flags.machine`. Returns a row for each run, number and rule.
  """
  check(workdirs, 'workdir: name that of a finished run, fesem-adapt WORKDIR')
  check(out or len(workdirs) == 1, 'output: name a folder for several runs')
  fits = all(n == ALL or (n.isdecimal() and int(n) > 0) for n in numbers)
  check(fits, f'num_examples: must be positive numbers or {ALL}')
  out = out or workdirs[0] / 'adapt'
  runs = [load(folder, machine['data_dir']) for folder in workdirs]
  check_one_configuration([clients.run for clients in runs])
  config, model = runs[0].run.config | {'clients_per_round': 0}, runs[0].run.model
  assert model is not None
  local, rows = build_local(config, model, runs[0].train, machine), []
  with locked(out):
    programs = Programs()  # All seeds run in the same compiled programs.
    models = [_fed_avg(clients.run, machine, programs) for clients in runs]
    for clients, model in zip(runs, models, strict=True):
      rows += measure(clients, model, local, numbers, machine['data_placement'])
    about = {'runs': list(map(str, workdirs)), 'algorithm': config['algorithm']}
    about['rows'] = rows
    write_atomically(out / 'adapt.json', json.dumps(about, indent=1) + '\n')
    write_atomically(out / 'table.md', table_of(rows).as_markdown())
  return rows


def _fed_avg(run: fj.Run, machine: dict[str, Any], programs: Programs) -> Params:
  """[1, ...] FedAvg's model on the clients of a run, trained unless it was."""
  names = experiment_flags.common_names()
  config = {name: run.config[name] for name in names if name in run.config}
  config |= methods.options('fed_avg') | {'algorithm': 'fed_avg', 'patience': 0}
  config['rounds'] = run.summary['rounds']
  if run.config.get('dp') == 'server':  # Its noise is for clients of one weight.
    config['weighting'] = 'uniform'
  folder = run.workdir / 'adapt' / 'fed_avg'
  say = functools.partial(print, f'[fed_avg, seed {config["seed"]}]')
  experiment.run(config, machine, folder, say=say, programs=programs)
  assert run.model is not None
  params = trained_part(run.model, fj.load_run(folder, run.model).params())
  return jax.tree.map(lambda x: x[None], params)


@jax.jit(static_argnums=0)
def alone(
  local: fj.LocalTraining, data: fj.FederatedData, key: jax.Array
) -> fj.ClientModels:
  """Trains every client by itself, from one random model, at the full learning rate."""
  of_model, of_training = jax.random.split(key)
  random = fj.ClientModels(fj.tree.expand(local.model.init(of_model)))
  local = local._replace(
    dropout_rate=0.0, work=None, sends=None, local_lr_schedule=None
  )
  trained = fj.train_cohort(local, random, data, fj.everyone(data), of_training)
  return fj.ClientModels(own=trained.params)


_evaluate = jax.jit(evaluate.evaluate_clients, static_argnums=(1, 5))


def measure(
  clients: NewClients,
  model: Params,
  local: fj.LocalTraining,
  numbers: Sequence[str],
  data_placement: str = 'auto',
) -> list[Row]:
  """A row for each number of examples and each of the five rules.

  `model` is [1, ...], the global model to compare with.
  """
  config, mesh, rows = clients.run.config, local.mesh, []
  rounds, (size, epochs, steps) = clients.run.summary['rounds'], local.schedule
  as_in_run = local._replace(
    schedule=fj.Schedule(size, rounds * epochs, rounds * steps)
  )
  keys = sharding.replicate(joining.joining_keys(config['seed']), mesh)
  centers, model = sharding.replicate((clients.centers, model), mesh)
  splits = clients.train, clients.test
  on_host, _ = arrangement.ordered(local, *splits)
  whole, test = arrangement.arrange_all(local, *splits, data_placement=data_placement)
  real, truth = len(whole.info.names), whole.info.clusters
  # Joining by loss on all examples is what the other rules are compared with.
  by_all = np.asarray(joining.by_rules(local, centers, whole, keys[0])['loss'])[:real]
  for number in sorted({int(n) for n in numbers if n != ALL}) + [0] * (ALL in numbers):
    train = whole
    if number:
      few = fj.data.first_examples(on_host, number, config['seed'])
      train = placement.place(few, mesh, placement.of(whole))
    joined = joining.by_rules(local, centers, train, keys[0])
    used = {rule: fj.ClientModels(centers, joined[rule]) for rule in joining.RULES}
    used['global model'] = fj.ClientModels(model)
    used['alone'] = alone(as_in_run, train, keys[1])
    for rule, models in used.items():
      measured = _evaluate(
        models, local, train, test, keys[2], config['finetune_epochs']
      )
      row = {'seed': config['seed'], 'num_examples': number or ALL, 'rule': rule}
      row |= {'clients': real, 'evaluated_on': config['evaluate_on']}
      for kind, totals in zip(('joined', 'finetuned'), measured, strict=False):
        row[kind] = evaluate.scores(jax.device_get(totals), local.model.measured_as)
      row |= {'in_group': None, 'as_loss': None}
      if rule in joined:
        choice = np.asarray(joined[rule])[:real]
        row['as_loss'] = float((choice == by_all).mean())
        if truth is not None and clients.groups is not None:
          row['in_group'] = float((clients.groups[choice] == truth).mean())
      rows.append(row)
  return rows


def table_of(rows: list[Row]) -> Table:
  """Means over runs, by number of examples and rule, in percent; see `measure`."""
  figure = fj.tasks.of_scores(rows[0]['joined']).primary
  scores = {'joined': 'joined', 'finetuned': 'fine-tuned'}
  shares = {'in_group': 'in its group', 'as_loss': 'as by all losses'}
  columns = [Column('num_examples', 'examples', 'd'), Column('rule', 'rule')]
  form = f'.{figure.digits}f'
  columns += [
    Column(key, f'{head} micro-{figure.heading}', form, '', True)
    for key, head in scores.items()
  ]
  columns += [Column(key, head, '.1f', '', True) for key, head in shares.items()]
  lines: list[list[Any]] = []
  for number, rule in dict.fromkeys((r['num_examples'], r['rule']) for r in rows):
    runs = [r for r in rows if (r['num_examples'], r['rule']) == (number, rule)]
    values = [[r[key][f'micro_{figure.name}'] for r in runs] for key in scores]
    cells = [cell(mean_and_std(value, figure.factor)) for value in values]
    for key in shares:
      known = [r[key] for r in runs if r[key] is not None]
      cells.append(cell(mean_and_std(known) if known else None))
    lines.append([number, rule, *cells])
  note = f'Mean ± standard deviation over {len({r["seed"] for r in rows})} run(s).'
  return Table(columns, lines, notes=[note], label='adapt')


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  machine = experiment_flags.machine()
  machine |= {'checkpoint_every': 10, 'resume': True, 'save_models': True}
  workdirs = [pathlib.Path(folder) for folder in argv[1:]]
  out = pathlib.Path(f.output) if f.output else None
  print(table_of(adapt(workdirs, out, f.num_examples, machine)))
  print(f'In {out or workdirs[0] / "adapt"}: table.md and adapt.json')


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define('machine')
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_list(
    'num_examples',
    ['5', '10', '20', '50', ALL],
    'Training examples that a new client has when it joins, the first of an order '
    "drawn from the run's seed; a client with fewer has all of its own.",
  )
  flags.DEFINE_string(
    'output', '', 'Folder of the results; default, for one WORKDIR: WORKDIR/adapt.'
  )
  experiment_flags.define_data_dir()


if __name__ == '__main__':
  define_flags()
  start(main)
