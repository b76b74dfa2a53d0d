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
from typing import Any

from absl import flags

import fesem_jax as fj
from fesem_jax.analysis import joining, tables
from fesem_jax.analysis.joining import ALL, Row
from fesem_jax.core import sharding
from fesem_jax.run.results import frames
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Table, spread

from . import flags as experiment_flags
from .build import build_local, build_model, data_of_run
from .options import Names
from .start import start


@dataclasses.dataclass(frozen=True)
class Adapt:
  """New clients of finished runs.

  Attributes:
    num_examples: Training examples of a new client, drawn by the seed; all: its own.
    output: Folder of the results; default, for one WORKDIR: WORKDIR/adapt.
  """

  num_examples: Names = ('5', '10', '20', '50', ALL)
  output: str = ''


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
  counts = sorted({int(n) for n in numbers if n != ALL}) + [0] * (ALL in numbers)
  runs = [fj.load_run(folder) for folder in workdirs]
  same = {'seed': 0, 'data_digest': '', 'own_code': None}
  configs = [run.config | same for run in runs]
  check(all(c == configs[0] for c in configs), 'workdir: runs differ in more than seed')
  unseen = configs[0].get('unseen_fraction')
  check(unseen, f'{workdirs[0]}: all clients took part; set unseen_fraction=0.2')
  splits = [
    data_of_run(folder, run.config, machine['data_dir'])
    for folder, run in zip(workdirs, runs, strict=True)
  ]
  config, rows = runs[0].config | {'clients_per_round': 0}, list[Row]()
  train, *_ = splits[0]
  local = build_local(config, build_model(config, train), train, machine)
  for run, (train, _, *new_clients) in zip(runs, splits, strict=True):
    rows += joining.adapt(
      run, local, *new_clients, counts, truth=train.info.clusters,
      data_placement=machine['data_placement'],
    )  # fmt: skip
  out.mkdir(parents=True, exist_ok=True)
  about = {'runs': list(map(str, workdirs)), 'algorithm': config['algorithm']}
  about |= {'evaluated_on': config['evaluate_on'], 'rows': rows}
  write_atomically(out / 'adapt.json', json.dumps(about, indent=1) + '\n')
  write_atomically(out / 'table.md', table_of(rows).to_markdown())
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


if __name__ == '__main__':
  experiment_flags.define('machine')
  flags.adopt_module_key_flags(experiment_flags)
  experiment_flags.define_options(Adapt)
  start(main)
