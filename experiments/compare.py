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
import functools
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

from absl import flags

from fesem_jax.algorithms import METHODS
from fesem_jax.analysis import tables, tuning
from fesem_jax.analysis.loop import Entry, run_entries
from fesem_jax.analysis.tuning import Search
from fesem_jax.evaluation import paired
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils.errors import UserError, WorkdirError, check
from fesem_jax.utils.ranges import Range, check_choice

from . import cluster, comparisons, methods, pages
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
    algorithms: Methods, each MODULE:FUNCTION or one of
    tune: FLAG:VALUE,VALUE: values to choose from by validation
    oracle: Also run FedAvg within the true groups, and compare with it.
    num_seeds: Number of seeds, from --seed.
    columns: Columns of the printed table; default: all but finetuned.
    redo: Methods, named as in the table, whose runs are deleted first.
    correct: Correction of p values for the number of methods.
    caption: Caption of table.tex.
    sweep: Values to compare: FLAG:VALUES or partition.FIELD:VALUES.
    reference: Method that others are compared with; default: the best one.
    tune_by: Models whose micro accuracy (or RMSE) --tune compares.
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


def _entries(workdir: pathlib.Path) -> tuple[dict[str, Entry], Search | None]:
  """The methods of the command, how they run in a workdir, and their tuning."""
  f = flags.FLAGS
  chosen = experiment_flags.chosen_options()
  configs = comparisons.configurations(f.algorithms, chosen, f.oracle)
  if f.sweep:
    configs = comparisons.swept(f.sweep, configs)
  check_choice('reference', f.reference, (*configs, ''))
  search = comparisons.parse_search(f.tune, configs, range(f.tune_seeds), f.tune_by)
  return comparisons.entries(configs, workdir, search), search


def _options() -> dict[str, Any]:
  f = flags.FLAGS
  say, progress = print if f.verbose else None, experiment_flags.progress()
  return {'runs_at_once': f.runs_at_once, 'progress': progress, 'say': say}


def _parts(labels: Iterable[str], seeds: Sequence[int]) -> dict[str, Any]:
  """Parts for jobs: a method, or with --runs_at_once=1 and without --tune, a run."""
  if flags.FLAGS.runs_at_once == 1 and not flags.FLAGS.tune:
    return {f'{label} seed {n}': (label, [n]) for label in labels for n in seeds}
  return {label: (label, list(seeds)) for label in labels}


def _raise(error: UserError, *_: Any) -> NoReturn:
  raise error


def carry_out(part: tuple[str, list[int]]) -> None:
  """Runs a method with some seeds in a job, for the process that writes the table."""
  label, seeds = part
  cluster.setup_devices()
  entries, search = _entries(pathlib.Path(flags.FLAGS.workdir))
  try:
    run_entries({label: entries[label]}, seeds, search, **_options())
  except UserError as e:  # The process that waits says why a method cannot run.
    if isinstance(e, WorkdirError):
      raise


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  cluster.setup_devices()
  workdir, seeds = pathlib.Path(f.workdir), range(f.seed, f.seed + f.num_seeds)
  entries, search = _entries(workdir)
  pages.prepare()
  build_callbacks(experiment_flags.machine())  # Raises before the first run.
  names = 'reference', 'report', 'columns', 'correct', 'caption'
  shown = {name: getattr(f, name) for name in names}
  with locked(workdir):
    remove_left_overs(workdir)
    for name in map(methods.folder_of, f.redo):
      check((workdir / name).is_dir(), f'redo: {workdir} has no {name!r}')
      for folder in (workdir / name, workdir / 'tune' / name):
        shutil.rmtree(folder, ignore_errors=True)
      (workdir / cluster.BOOK).unlink(missing_ok=True)
    if f.launcher:
      parts = _parts(entries, seeds)
      for name, error in cluster.launch('compare', parts, workdir).items():
        if error is not None:
          entries[parts[name][0]] = Entry(functools.partial(_raise, error))
    result = run_entries(entries, seeds, search, folder=workdir, **shown, **_options())
    print(f'\n{pages.printed(result)}\n')
    print(f'Tables: {workdir}/table.md, .csv, .tex, .json')
    print(pages.draw(result, workdir, f.sweep))
    print(pages.written(workdir, f.reference))
    result.check()


def define_flags() -> None:
  experiment_flags.define()
  experiment_flags.define(Compare, cluster.Launch)


if __name__ == '__main__':
  define_flags()
  start(main)
