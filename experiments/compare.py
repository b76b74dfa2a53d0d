r"""Compares methods over seeds, and writes their table.

  fesem-compare --algorithms='non_fed,fed_avg,fesem(4)' --num_seeds=5 \
      --dataset=digits --partition=rotated --workdir=runs/table
  fesem-compare --algorithms='Ours=my_file:method(8),IFCA=ifca(8;learning_rate=0.5)' \
      --tune=learning_rate:0.01,0.1,1 --flagfile=femnist --workdir=runs/femnist
  fesem-compare --sweep=clients_per_round:5,10,20 --algorithms='fed_avg,fesem(4)'

WORKDIR gets table.{md,csv,tex,json}, plots/ and report.html. The same command again
runs only what is missing. The table has all runs of WORKDIR; --redo=METHOD deletes
those of a method first.
"""

import dataclasses
import pathlib
import shutil
from typing import Annotated

from absl import flags

from fesem_jax.algorithms import METHODS
from fesem_jax.analysis import tables, tuning
from fesem_jax.analysis.loop import run_entries
from fesem_jax.core import sharding
from fesem_jax.evaluation import paired
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Range

from . import comparisons, methods, pages
from . import flags as experiment_flags
from .build import build_callbacks
from .comparisons import MOST_SEEDS
from .options import REPEATED, Kinds, Names, OneOf
from .start import no_positional, start

_ALGORITHMS = 'non_fed', 'fed_avg', 'fesem(4)'


@dataclasses.dataclass(frozen=True)
class Compare:
  """A comparison.

  Attributes:
    algorithms: Methods: MODULE:FUNCTION, or of
    tune: Values, FLAG:VALUE,VALUE, to choose from on validation examples.
    oracle: Also run FedAvg within the true groups, and compare with it.
    num_seeds: Number of seeds, from --seed.
    columns: Columns of the printed table; default: all but finetuned.
    redo: Methods, named as in the table, whose runs are deleted first.
    correct: Correction of p values for the number of methods.
    caption: Caption of table.tex.
    sweep: Runs methods at each value of FLAG:VALUES or partition.FIELD:VALUES.
    reference: Method that others are compared with; default: the best one.
    tune_by: Models whose micro accuracy (regression: RMSE) --tune compares.
    tune_seeds: Seeds over which --tune takes the mean, from --seed + 10000.
    workdir: Folder of all runs and the table.
  """

  algorithms: Annotated[Names, Kinds(tuple(METHODS))] = _ALGORITHMS
  tune: Annotated[Names, REPEATED] = ()
  oracle: bool = False
  num_seeds: Annotated[int, Range(1, MOST_SEEDS)] = 5
  columns: Annotated[Names, Kinds(tuple(tables.COLUMNS))] = ()
  redo: Names = ()
  correct: Annotated[str, OneOf(tuple(paired.CORRECTIONS))] = 'none'
  caption: str = ''
  sweep: str = ''
  reference: str = ''
  tune_by: Annotated[str, OneOf(tuning.KINDS)] = 'deployed'
  tune_seeds: Annotated[int, Range(1, MOST_SEEDS)] = 3
  workdir: str = 'runs/compare'


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  workdir, seeds = pathlib.Path(f.workdir), range(f.seed, f.seed + f.num_seeds)
  chosen = experiment_flags.chosen_options()
  configs = comparisons.configurations(f.algorithms, chosen, f.oracle)
  if f.sweep:
    configs = comparisons.swept(f.sweep, configs)
  tables.check_reference(f.reference, list(configs))
  build_callbacks(experiment_flags.machine())  # Raises before the first run.
  search = comparisons.parse_search(f.tune, configs, range(f.tune_seeds), f.tune_by)
  names = 'reference', 'report', 'columns', 'correct', 'caption'
  shown = {name: getattr(f, name) for name in names}
  with locked(workdir) as alone:
    if alone:
      remove_left_overs(workdir)
    for name in map(methods.folder_of, f.redo):
      check((workdir / name).is_dir(), f'redo: {workdir} has no {name!r}')
      for folder in (workdir / name, workdir / 'tune' / name):
        shutil.rmtree(folder, ignore_errors=True)
    result = run_entries(
      comparisons.entries(configs, workdir, search), seeds, search, folder=workdir,
      runs_at_once=f.runs_at_once, progress=experiment_flags.progress(),
      say=print if f.verbose else None, **shown,
    )  # fmt: skip
    print(f'\n{pages.printed(result)}\n')
    print(f'Tables: {workdir}/table.md, .csv, .tex, .json')
    print(pages.draw(result, workdir, f.sweep))
    print(pages.written(workdir, f.reference))
    result.check()


def define_flags() -> None:
  experiment_flags.define()
  experiment_flags.define(Compare)


if __name__ == '__main__':
  define_flags()
  start(main)
