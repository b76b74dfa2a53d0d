"""Lets new clients join the clusters of finished runs, and evaluates them.

  fesem-run --partition=rotated --unseen_fraction=0.2 --workdir=runs/fesem4
  fesem-adapt runs/fesem4
  fesem-adapt runs/table/fesem*/seed* --output=runs/new_clients

--unseen_fraction sets the new clients aside. Each joins a center by its weights or its
loss (in a run of FedAvg, it gets the global model), and is compared with training
alone. The folder of results gets table.md and adapt.json.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags
from flax.traverse_util import flatten_dict

import fesem_jax as fj
from fesem_jax import tasks
from fesem_jax.analysis import joining, tables
from fesem_jax.analysis.joining import ALL, Row
from fesem_jax.core import sharding
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import markdown, spread

from . import flags as experiment_flags
from .build import build_local, build_model, data_of_run
from .options import Names
from .start import start

if TYPE_CHECKING:
  from pandas import DataFrame


@dataclasses.dataclass(frozen=True)
class Adapt:
  """New clients of finished runs.

  Attributes:
    num_examples: Numbers of random training examples of a new client, or all.
    output: Folder of results; default, for one WORKDIR: WORKDIR/adapt.
  """

  num_examples: Names = ('5', '10', '20', '50', ALL)
  output: str = ''


def adapt(
  workdirs: Sequence[pathlib.Path],
  out: pathlib.Path | None,
  numbers: Sequence[str],
  machine: dict[str, Any],
) -> list[Row]:
  """Writes and returns a row for each run (seeds of one configuration) and rule."""
  check(workdirs, 'workdir: missing; name that of a run, fesem-adapt WORKDIR')
  check(out or len(workdirs) == 1, 'output: name a folder for several runs')
  numbers = [n.replace(ALL, '0') for n in numbers]
  fits = all(map(str.isdecimal, numbers))
  check(fits, f'num_examples: must be positive numbers or {ALL}')
  out = out or workdirs[0] / 'adapt'
  counts = sorted({int(n) for n in numbers}, key=lambda count: count or math.inf)
  runs = [fj.load_run(folder) for folder in workdirs]
  same = {'seed': 0, 'data_digest': '', 'own_code': None}
  first, *others = [run.config | same for run in runs]
  check(all(c == first for c in others), 'workdir: runs differ in more than seed')
  unseen = first.get('unseen_fraction')
  check(unseen, f'{workdirs[0]}: all clients took part; set unseen_fraction=0.2')
  splits = [data_of_run(r.workdir, r.config, machine['data_dir']) for r in runs]
  config, rows = runs[0].config | {'clients_per_round': 0}, list[Row]()
  train, *_ = splits[0]
  local = build_local(config, build_model(config, train), train, machine)
  for run, (train, _, new_train, new_test) in zip(runs, splits, strict=True):
    rows += joining.adapt(
      run, local, new_train, new_test, counts, truth=train.info.clusters,
      data_placement=machine['data_placement'],
    )  # fmt: skip
  out.mkdir(parents=True, exist_ok=True)
  about = {'runs': list(map(str, workdirs)), 'rows': rows}
  about |= {name: config[name] for name in ('algorithm', 'evaluate_on')}
  write_atomically(out / 'adapt.json', json.dumps(about, indent=1) + '\n')
  cells, note = table_of(rows)
  lines = [*markdown([*cells], cells.itertuples(index=False)), '', note]
  write_atomically(out / 'table.md', '\n'.join(lines) + '\n')
  return rows


def table_of(rows: list[Row]) -> 'tuple[DataFrame, str]':
  """Means over runs, by number of examples and rule, in percent; and what they are."""
  import pandas  # Slow to import.

  task = tasks.from_scores(rows[0]['joined'])
  table = pandas.DataFrame([flatten_dict(row, sep='.') for row in rows])
  table['in_group'] = table['in_group'].astype(float)
  heads = {f'joined.{task.primary_column}': 'joined'}
  heads |= {f'finetuned.{task.primary_column}': 'fine-tuned', 'in_group': ''}
  by = ['num_examples', 'rule']
  table[by] = table[by].astype(str).apply(lambda x: pandas.Categorical(x, x.unique()))
  means = tables.over_seeds(table, list(heads), by)
  cells = means.index.to_frame(index=False)
  for name, head in heads.items():
    metric, parts = tables.metric(name), means[name][['mean', 'std']].itertuples()
    head = f'{head} {tables.heading(name)}'.strip()
    cells[head] = [spread(mean, std, f'.{metric.digits}f') for _, mean, std in parts]
  count = len({row['seed'] for row in rows})
  note = f'Mean ± standard deviation over {count} run{"s" * (count > 1)}.'
  return cells.rename(columns={'num_examples': 'examples'}), note


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices, identical=f.identical)
  workdirs = [pathlib.Path(folder) for folder in argv[1:]]
  out = pathlib.Path(f.output) if f.output else None
  rows = adapt(workdirs, out, f.num_examples, experiment_flags.machine())
  cells, note = table_of(rows)
  print(cells.to_string(index=False), note, sep='\n')
  print(f'In {out or workdirs[0] / "adapt"}: table.md and adapt.json')


if __name__ == '__main__':
  experiment_flags.define('machine', Adapt)
  start(main)
