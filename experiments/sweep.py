r"""Methods by the value of one flag: accuracy and clusters at each, over seeds.

  fesem-sweep --vary=clients_per_round:5,10,20,0 --num_seeds=3 \
      --algorithms='fed_avg,fesem(4)' --partition=rotated --workdir=runs/cohorts
  fesem-sweep --vary=corrupt_fraction:0,0.1,0.2,0.3,0.4 \
      --corrupt=sign_flip --algorithms='fed_avg,fed_avg(aggregation=median)'

Runs fesem-compare at each value, into WORKDIR/FLAG=VALUE; methods without the flag run
once. WORKDIR gets sweep.{md,csv,json} and plots/sweep.{png,svg}.
"""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

from absl import flags

from fesem_jax import data
from fesem_jax.analysis.comparing import Comparison
from fesem_jax.core import sharding
from fesem_jax.data.corruption import corrupted
from fesem_jax.run.checks import check_arguments
from fesem_jax.run.spec import Spec
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError

from . import compare, methods, tune
from . import flags as experiment_flags
from .build import build_local, build_model, load_phases
from .many_runs import Count
from .start import no_positional, start
from .sweep_tables import (
  Point,
  are_numbers,
  draw,
  points_of,
  tables_of,
  text_of,
  write,
)


def parse_vary(text: str) -> tuple[str, list[Any]]:
  """'rounds:20,10' -> ('rounds', [10, 20]); numbers in increasing order."""
  name, values = tune.parse_search(text, 'vary')
  if are_numbers(values):  # Without clients_per_round, all take part.
    values.sort(key=lambda v: (name == 'clients_per_round' and v == 0, v))
  return name, values


def configurations(
  name: str, values: list[Any], listed: list[str], num_seeds: int
) -> list[tune.ByLabel]:
  """The configurations of a comparison at each value of a flag."""
  flag = flags.FLAGS[name]
  by_value, before = [], flag.value
  try:
    for value in values:
      flag.value = value
      by_label = compare.configurations(
        listed, num_seeds, experiment_flags.chosen_options()
      )
      if name.startswith('corrupt') and value in ('none', 0):
        honest = {'corrupt': 'none', 'corrupt_fraction': 0.0}
        by_label = {la: [c | honest for c in each] for la, each in by_label.items()}
      by_value.append(by_label)
  finally:
    flag.value = before
  return by_value


def check(by_value: Iterable[tune.ByLabel]) -> int:
  """Builds all that needs no training, at each value; returns the number of clients."""
  loaded: dict[str, Any] = {}
  machine = experiment_flags.machine() | {'clients_per_chunk': '0'}
  for by_label in by_value:
    config = next(iter(by_label.values()))[0]
    names = [*experiment_flags.data_names(), 'evaluate_on']
    key = json.dumps([config[n] for n in names])
    if key not in loaded:
      loaded = {key: load_phases(config, machine['data_dir'])}
    _, train, test = loaded[key][0]
    if fraction := config['unseen_fraction']:
      (train, test), _ = data.hold_out_clients(train, test, fraction, config['seed'])
    corrupted(train, config['corrupt'], config['corrupt_fraction'], config['seed'])
    local = build_local(config, build_model(config, train), train, machine)
    built, refused = [], []
    for first, *_ in by_label.values():
      try:
        built.append(methods.configured(first, local))
      except UserError as e:
        refused.append(e)
    if not built:
      raise refused[0]
    names = ['rounds', 'clients_per_round', 'eval_every', 'finetune_epochs']
    numbers = {name: config[name] for name in names}
    check_arguments(Spec(algorithm=built[0], train=train, test=test, **numbers))
  return train.num_clients


def run_all(
  by_value: list[tune.ByLabel],
  name: str,
  values: list[Any],
  num_clients: int,
  workdir: pathlib.Path,
) -> None:
  """Runs what is missing at every value, then writes, prints and draws the curves."""
  points: list[Point] = []
  called = f'{name} ({flags.FLAGS.corrupt})' if name == 'corrupt_fraction' else name
  finished: list[Comparison] = []
  first, ran = by_value[0], False
  new_ones = [
    {la: c for la, c in by_label.items() if by_label is first or c != first[la]}
    for by_label in by_value
  ]
  count = Count(sum(len(each) for new in new_ones for each in new.values()))
  # What a value does not concern has run at the first one.
  for value, by_label, new in zip(values, by_value, new_ones, strict=True):
    place = f'{name}={text_of(value)}'
    print(f'{printable(place, 255)}:')
    folder = workdir / place.replace('/', '_')
    compare.remove_redone(new, folder)
    found_there, _ = compare.run_methods(new, folder, count=count)
    finished.append(found_there)
    known = finished[0].reported | finished[-1].reported
    here = {label: known[label] for label in by_label}
    points += points_of(value, here, found_there.report)
    ran = ran or any(here.values())
    if ran:  # A table of an earlier command stays if nothing can run.
      write(points, called, workdir)
  if not ran:
    finished[0].check()
  print('', *tables_of(points, called), sep='\n\n')
  print(f'\nTables: {workdir}/sweep.md, .tex, .csv, .json')
  no_figures = draw(points, called, num_clients, workdir)
  print(no_figures or f'Figure: {workdir}/plots/sweep.png, .svg')
  for each in finished:
    each.check()


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  name, values = parse_vary(''.join(f.vary))
  sharding.setup_devices(f.num_devices)
  by_value = configurations(name, values, compare.listed_methods(), f.num_seeds)
  compare.check_redo(by_value[0])
  num_clients = check(by_value)
  workdir = pathlib.Path(f.workdir)
  with locked(workdir) as alone:
    if alone:
      remove_left_overs(workdir)
    run_all(by_value, name, values, num_clients, workdir)


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  compare.define_methods(['fed_avg', 'fesem(4)'], 3)
  flags.adopt_module_key_flags(compare)
  flags.DEFINE_multi_string(
    'vary',
    [],
    'FLAG:VALUE,VALUE, e.g. clients_per_round:5,10,0 or prox_lambda:0,0.01: a flag of '
    'data, model, training, run or methods, and its values, each a comparison of its '
    'own.',
  )
  flags.DEFINE_string(
    'workdir', 'runs/sweep', 'Folder of all runs, the tables and the figure.'
  )


if __name__ == '__main__':
  define_flags()
  start(main)
