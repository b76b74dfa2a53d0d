"""Lets new clients join the clusters of finished runs, and measures what they get.

  fesem-run --partition=rotated --unseen_fraction=0.2 --workdir=runs/fesem4
  fesem-adapt runs/fesem4
  fesem-adapt runs/table/fesem*/seed* --output=runs/new_clients

The new clients are those that --unseen_fraction set aside. Each joins a center by its
weights, its direction or its loss (in a run of FedAvg: gets the global model), and is
compared with training alone. The folder of results gets table.md and adapt.json.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

import fesem_jax as fj
from fesem_jax.analysis import joining, tables
from fesem_jax.core import arrangement, placement, sharding
from fesem_jax.core.types import Params
from fesem_jax.evaluation import evaluate
from fesem_jax.evaluation.agreement import contingency
from fesem_jax.models.starting import trained_part
from fesem_jax.run.results import frames
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Table, spread

from . import flags as experiment_flags
from .build import build_local, build_model, data_of_run
from .start import start

ALL = 'all'
Row = dict[str, Any]  # Of a seed, a number of examples and a rule.


class NewClients(NamedTuple):
  """A finished run, and the clients that took no part in it."""

  run: fj.Run
  centers: Params  # [K, ...] that clients of the run deploy, or its global model
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
  if run.deployed.choice is None:
    centers = jax.tree.map(lambda x: x[None], trained_part(model, run.params()))
    return NewClients(run, centers, None, *of_unseen)
  _, centers = joining.used_centers(run, model)
  if truth is not None:
    most = contingency(run.deployed.choice, truth).argmax(axis=1)
    groups = np.unique(truth)[most]
  return NewClients(run, centers, groups, *of_unseen)


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
  numbers = [ALL if n == '0' else n for n in numbers]
  fits = all(n == ALL or (n.isdecimal() and int(n) > 0) for n in numbers)
  check(fits, f'num_examples: must be positive numbers or {ALL}')
  out = out or workdirs[0] / 'adapt'
  runs = [load(folder, machine['data_dir']) for folder in workdirs]
  same = {'seed': 0, 'data_digest': '', 'own_code': None}
  configs = [clients.run.config | same for clients in runs]
  check(all(c == configs[0] for c in configs), 'workdir: runs differ in more than seed')
  config, model = runs[0].run.config | {'clients_per_round': 0}, runs[0].run.model
  assert model is not None
  local, rows = build_local(config, model, runs[0].train, machine), []
  out.mkdir(parents=True, exist_ok=True)
  for clients in runs:
    rows += measure(clients, local, numbers, machine['data_placement'])
  about = {'runs': list(map(str, workdirs)), 'algorithm': config['algorithm']}
  about['rows'] = rows
  write_atomically(out / 'adapt.json', json.dumps(about, indent=1) + '\n')
  write_atomically(out / 'table.md', table_of(rows).to_markdown())
  return rows


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
  local: fj.LocalTraining,
  numbers: Sequence[str],
  data_placement: str = 'auto',
) -> list[Row]:
  """A row for each number of examples and each rule, or the global model, and alone."""
  config, mesh, rows = clients.run.config, local.mesh, []
  rounds, (size, epochs, steps) = clients.run.summary['rounds'], local.schedule
  schedule = fj.Schedule(size, rounds * epochs, rounds * steps)
  keys = sharding.replicate(joining.joining_keys(config['seed']), mesh)
  centers = sharding.replicate(clients.centers, mesh)
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
    joined, used = {}, {'global model': fj.ClientModels(centers)}
    if clients.run.deployed.choice is not None:
      joined = joining.by_rules(local, centers, train, keys[0])
      used = {rule: fj.ClientModels(centers, joined[rule]) for rule in joining.RULES}
    used['alone'] = alone(local._replace(schedule=schedule), train, keys[1])
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
  import pandas

  figure = fj.tasks.of_scores(rows[0]['joined']).primary
  shares = {'in_group': 'in its group', 'as_loss': 'as by all losses'}
  table = pandas.DataFrame([frames.flat(row) for row in rows])
  for name in shares:
    table[name] = 100 * table[name].astype(float)
  heads = {
    f'joined.micro_{figure.name}': f'joined micro-{figure.heading}',
    f'finetuned.micro_{figure.name}': f'fine-tuned micro-{figure.heading}',
    **shares,
  }
  by = ['num_examples', 'rule']
  table[by] = table[by].astype(str).apply(lambda x: pandas.Categorical(x, x.unique()))
  means = tables.over_seeds(table, list(heads), by)
  columns = {'rule': list(means.index.get_level_values('rule'))}
  for name, head in heads.items():
    form = '.1f' if name in shares else f'.{figure.digits}f'
    parts = zip(means[name, 'mean'], means[name, 'std'], strict=True)
    columns[head] = [spread(mean, std, form) for mean, std in parts]
  note = f'Mean ± standard deviation over {len({r["seed"] for r in rows})} run(s).'
  return Table.of_texts(means.index.get_level_values(0), columns, note)


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  workdirs = [pathlib.Path(folder) for folder in argv[1:]]
  out = pathlib.Path(f.output) if f.output else None
  print(table_of(adapt(workdirs, out, f.num_examples, experiment_flags.machine())))
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


if __name__ == '__main__':
  define_flags()
  start(main)
