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
from typing import Any

from absl import flags

import fesem_jax as fj
from fesem_jax.analysis import joining
from fesem_jax.analysis.joining import ALL, Row
from fesem_jax.core import sharding
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check

from . import flags as experiment_flags
from .build import build_local, build_model, data_of_run
from .options import Names
from .start import start


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
  write_atomically(out / 'table.md', joining.table_of(rows).to_markdown())
  return rows


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  workdirs = [pathlib.Path(folder) for folder in argv[1:]]
  out = pathlib.Path(f.output) if f.output else None
  print(
    joining.table_of(adapt(workdirs, out, f.num_examples, experiment_flags.machine()))
  )
  print(f'In {out or workdirs[0] / "adapt"}: table.md and adapt.json')


if __name__ == '__main__':
  experiment_flags.define('machine', Adapt)
  start(main)
