"""Lets new clients join the clusters of finished runs, and measures what they get.

  fesem-run --partition=rotated --unseen_fraction=0.2 --workdir=runs/fesem4
  fesem-adapt runs/fesem4
  fesem-adapt runs/table/fesem*/seed* --output=runs/new_clients

The new clients are those that --unseen_fraction set aside. Each joins a center by its
weights, its direction or its loss, and is measured beside FedAvg and training alone.
The folder of results gets table.md, adapt.csv, adapt.json and a figure.
"""

import json
import pathlib
from typing import Any

from absl import flags

from fesem_jax.core import sharding
from fesem_jax.core.types import Params
from fesem_jax.run.programs import Programs
from fesem_jax.run.workdir import locked
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check as check_argument

from . import adapt_tables, methods, new_clients
from . import flags as experiment_flags
from . import run as experiment
from .adapt_measure import Settings, check, measure
from .build import build_local
from .new_clients import NewClients
from .start import start


def adapt(
  workdirs: list[pathlib.Path],
  out: pathlib.Path | None,
  settings: Settings,
  machine: dict[str, Any],
  global_runs: list[pathlib.Path] | None = None,
) -> list[adapt_tables.Row]:
  """Measures the new clients of finished runs, and writes tables and a figure.

  The runs in `workdirs` are seeds of one configuration. `out` is the folder of the
  results; None is WORKDIR/adapt of the only run. `global_runs` are workdirs of FedAvg,
  one for each of `workdirs`; None trains it. `machine` is from `flags.machine`. Returns
  a row for each run, number of examples and rule.
  """
  check(settings)
  count, global_runs = len(workdirs), global_runs or []
  check_argument(count, 'workdir: name that of a finished run, fesem-adapt WORKDIR')
  check_argument(out or count == 1, 'output: name a folder for several runs')
  check_argument(len(global_runs) in (0, count), f'global_run: name {count} runs')
  out = out or workdirs[0] / 'adapt'
  runs = [new_clients.load(folder, machine['data_dir']) for folder in workdirs]
  new_clients.check_one_configuration(runs)
  if global_runs:
    pairs = zip(global_runs, runs, strict=True)
    models = [new_clients.global_model(folder, each) for folder, each in pairs]
  local = build_local(
    runs[0].config | {'clients_per_round': 0}, runs[0].model, runs[0].train, machine
  )
  with locked(out):
    if not global_runs:
      programs = Programs()  # All seeds run in the same compiled programs.
      models = [_fed_avg(each, machine, programs) for each in runs]
    rows = []
    for each, model in zip(runs, models, strict=True):
      with progress_lines.shown(True, f'new clients of {each.run.workdir}'):
        rows += measure(each, model, local, settings, machine['data_placement'])
    _write(out, rows, runs, settings, global_runs)
  return rows


def _paired(
  workdirs: list[pathlib.Path], global_runs: list[pathlib.Path]
) -> list[tuple[str, str]]:
  """The run of each seed and that of its global model, '' if it is not named."""
  named = [str(folder.resolve()) for folder in global_runs] or [''] * len(workdirs)
  return [(str(run.resolve()), of) for run, of in zip(workdirs, named, strict=True)]


def _fed_avg(
  clients: NewClients, machine: dict[str, Any], programs: Programs
) -> Params:
  """The global model of FedAvg on the clients of a run, trained unless it was."""
  common = experiment_flags.common_names()
  config = {name: clients.config[name] for name in common if name in clients.config}
  config |= {'algorithm': 'fed_avg', 'patience': 0}
  config |= _options_of_fed_avg(clients.config)
  folder = clients.run.workdir / 'adapt' / 'fed_avg'

  def say(text: str) -> None:
    print(f'[fed_avg, seed {config["seed"]}] {text}')

  experiment.run(config, machine, folder, say=say, programs=programs)
  return new_clients.global_model(folder, clients)


def _options_of_fed_avg(config: dict[str, Any]) -> dict[str, Any]:
  """FedAvg's own options: those of a run that were given, and else its defaults."""
  own, defaults = methods.options('fed_avg'), methods.options(config['algorithm'])
  given = {
    name: config[name]
    for name in own
    if name in defaults and config.get(name, defaults[name]) != defaults[name]
  }
  # Noise of the server is for clients of one weight.
  uniform = {'weighting': 'uniform'} if config.get('dp') == 'server' else {}
  return own | given | uniform


def _write(
  out: pathlib.Path,
  rows: list[adapt_tables.Row],
  runs: list[NewClients],
  settings: Settings,
  global_runs: list[pathlib.Path],
) -> None:
  """Writes the table, all figures and the plot."""
  table = adapt_tables.over_runs(rows)
  about = {
    'runs': [str(each.run.workdir) for each in runs],
    'paired': _paired([each.run.workdir for each in runs], global_runs),
    'algorithm': runs[0].config['algorithm'],
    'settings': settings._asdict(),
    'rows': rows,
  }
  write_atomically(out / 'adapt.json', json.dumps(about, indent=1) + '\n')
  write_atomically(out / 'adapt.csv', adapt_tables.as_csv(rows))
  write_atomically(out / 'table.md', adapt_tables.table_of(table).as_markdown())
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional, the table is not.
    print(e)
    return
  numbers, panels = adapt_tables.curves(table)
  said = ['validation examples'] * (table[0]['evaluated_on'] != 'test')
  name = 'training examples of a new client'
  figure = plots.by_value(panels, name, numbers, said=said)
  plots.save(figure, out / 'accuracy_by_examples')


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  settings = Settings(
    tuple(f.num_examples), f.join_epochs, f.alone_epochs, f.finetune_epochs
  )
  check(settings)
  sharding.setup_devices(f.num_devices)
  machine = experiment_flags.machine()
  machine |= {'checkpoint_every': 10, 'resume': True}
  machine |= {'save_models': True}
  workdirs = [pathlib.Path(folder) for folder in argv[1:]]
  out = pathlib.Path(f.output) if f.output else None
  rows = adapt(
    workdirs, out, settings, machine, [pathlib.Path(g) for g in f.global_run]
  )
  print(adapt_tables.table_of(adapt_tables.over_runs(rows)))
  print(f'In {out or workdirs[0] / "adapt"}: table.md, adapt.csv, adapt.json, a plot')


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define('machine')
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_list(
    'num_examples',
    ['5', '10', '20', '50', 'all'],
    'Training examples that a new client has when it joins, the first of an order '
    "drawn from the run's seed; a client with fewer has all of its own.",
  )
  flags.DEFINE_integer(
    'join_epochs',
    0,
    'Local epochs before the weights or the direction of a client are compared, with '
    "the run's local training; 0: as much as in a round of the run.",
    lower_bound=0,
    upper_bound=100_000,
  )
  flags.DEFINE_integer(
    'finetune_epochs',
    None,
    'Local epochs of fine-tuning after joining; default: those of the run.',
    lower_bound=0,
    upper_bound=100_000,
  )
  flags.DEFINE_integer(
    'alone_epochs',
    0,
    'Local epochs of training alone, from one random model for all; 0: as much as a '
    'client that takes part in every round of the run.',
    lower_bound=0,
    upper_bound=10_000_000,
  )
  flags.DEFINE_list(
    'global_run',
    [],
    'Workdirs of finished runs of FedAvg on the same clients, one for each WORKDIR; '
    'default: trained into WORKDIR/adapt/fed_avg, or taken from there.',
  )
  flags.DEFINE_string(
    'output', '', 'Folder of the results; default, for one WORKDIR: WORKDIR/adapt.'
  )
  experiment_flags.define_data_dir()


if __name__ == '__main__':
  define_flags()
  start(main)
