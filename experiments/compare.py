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
from collections.abc import Sequence
from typing import Any

from absl import flags

from fesem_jax import algorithms
from fesem_jax.analysis import tables, tuning
from fesem_jax.analysis.comparing import run_each
from fesem_jax.analysis.comparison import Comparison, read_comparison
from fesem_jax.analysis.runs_of_methods import Outcome
from fesem_jax.core import sharding
from fesem_jax.evaluation import paired
from fesem_jax.run.results.frames import Recorded
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils import progress_lines
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError, check

from . import flags as experiment_flags
from . import methods, pages, sweep, tune
from .build import HeldData, build_callbacks
from .many_runs import Count, Wanted, run_unless_diverged
from .start import no_positional, start


def configurations(
  listed: list[str], num_seeds: int, chosen: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
  """The configurations of a comparison, by the names and in the order given.

  `listed` are methods as `methods.parse_method` takes them, some behind LABEL=, and
  `chosen` the options of the command line, for the methods that have them. Returns
  label -> the configuration of each seed.
  """
  parsed = []
  for text in listed:
    label, called = methods.split_label(text)
    parsed.append((label or called.strip(), *methods.parse_method(called)))
  for option in chosen:
    used = any(option in methods.options(name) for _, name, _ in parsed)
    check(used, f'{option}: does not apply to any of algorithms; leave it out')
  by_label: dict[str, list[dict[str, Any]]] = {}
  for label, name, values in parsed:
    options = {
      option: value
      for option, value in (chosen | values).items()
      if option in methods.options(name)
    }
    config = experiment_flags.configuration(name, options) | values
    seeds = range(config['seed'], config['seed'] + num_seeds)
    configs = [config | {'seed': seed} for seed in seeds]
    twice = label in by_label or configs in by_label.values()
    check(not twice, f'algorithms: {label} is listed twice')
    by_label[label] = configs
  return by_label


def chosen_configurations() -> dict[str, list[dict[str, Any]]]:
  """The configurations that the flags name."""
  chosen = experiment_flags.chosen_options()
  return configurations(listed_methods(), flags.FLAGS.num_seeds, chosen)


def listed_methods() -> list[str]:
  """Methods of --algorithms, and the oracle where --oracle asks for it."""
  listed = list(flags.FLAGS.algorithms)
  if flags.FLAGS.oracle and 'oracle' not in (
    methods.parse_method(text)[0] for _, text in map(methods.split_label, listed)
  ):
    listed.append('oracle')
  return listed


def draw(comparison: Comparison, workdir: pathlib.Path, flag: str = '') -> str | None:
  """Draws methods over seeds, a sweep of a flag, and the first run with clusters."""
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional, the table is not.
    return str(e)
  rounds = comparison.rounds.set_index('metric')
  clustered = rounds['run'][rounds.index == 'cluster_sizes.0']
  runs = comparison.runs[comparison.runs['run'].isin(clustered)]
  folders = runs.groupby('method', observed=True)['folder'].first()
  with progress_lines.shown(experiment_flags.progress(), 'drawing figures'):
    for folder in folders:
      plots.draw_run(folder)
    plots.draw_comparison(comparison, workdir / 'plots')
    if flag:
      figure = plots.sweep_figure(comparison.frames, flag)
      plots.save(figure, workdir / 'plots' / 'sweep')
  return None


def run_methods(
  by_label: tune.ByLabel,
  workdir: pathlib.Path,
  count: Count | None = None,
  search: tune.Search | None = None,
  held: HeldData | None = None,
  **shown: Any,
) -> Comparison:
  """Runs what is missing of a comparison, and writes its table after every method.

  The comparison is of all runs in the workdir. `shown` are attributes of it, and
  `count` is of all runs of the command. Runs share programs with those of the `search`,
  whose data are `held`. Figures of clients are of the first seed.
  """
  counted = count or Count(sum(map(len, by_label.values())))

  def run(label: str) -> list[Outcome]:
    folder = workdir / methods.folder_of(label)
    wanted = [
      Wanted(c, folder / f'seed{c["seed"]}', f'{label}, seed {c["seed"]}')
      for c in by_label[label]
    ]
    first, *_ = by_label[label]
    return run_unless_diverged(
      wanted, about=label, count=counted, held=held, portraits_of=[first['seed']],
      like=tune.configurations(label, first, search), at_once=len(wanted),
      tuned=tuple(search.grid) if search else (),
    )  # fmt: skip

  def refuse(label: str, config: dict[str, Any], error: UserError) -> None:
    reason = printable(str(error), 2000)
    print(f'{label}, seed {config["seed"]} cannot run: {reason}')

  written: list[Comparison] = []

  def after(recorded: list[Recorded]) -> None:
    written[:] = [read_comparison(workdir, **shown)]
    written[0].write(workdir)

  _, refused = run_each(by_label, run, refuse, after)
  if len(refused) == len(by_label):
    raise next(iter(refused.values()))
  return dataclasses.replace(written[0], refused=refused)


def redo(labels: Sequence[str], workdir: pathlib.Path) -> None:
  """Deletes the runs of methods, and of their tuning."""
  for label in labels:
    name = methods.folder_of(label)
    check((workdir / name).is_dir(), f'redo: {workdir} has no {label!r}')
    for folder in (workdir / name, workdir / 'tune' / name):
      shutil.rmtree(folder, ignore_errors=True)


def shown() -> dict[str, Any]:
  """Options of tables from the flags; raises `UserError` on unknown columns."""
  f = flags.FLAGS
  tables.check_columns(f.columns)
  names = 'reference', 'report', 'columns', 'correct'
  return {name: getattr(f, name) for name in names}


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  workdir = pathlib.Path(f.workdir)
  by_label = chosen_configurations()
  swept = sweep.parse(f.sweep, chosen_configurations) if f.sweep else None
  if swept is not None:
    by_label = swept.by_label
  tables.check_reference(f.reference, list(by_label))
  options = shown()  # Raises before the first run.
  reported = range(f.seed, f.seed + f.num_seeds)
  build_callbacks(experiment_flags.machine())  # Raises before the first run.
  personal = methods.options_of_own(each[0]['algorithm'] for each in by_label.values())
  search = tune.parse(f.tune, f.tune_by, f.tune_seeds, reported, personal)
  with locked(workdir) as alone:
    if alone:
      remove_left_overs(workdir)
      redo(f.redo, workdir)
    number = sum(map(len, by_label.values())) + tune.number_of_runs(by_label, search)
    count = Count(number)
    held = HeldData() if search else None
    choices = tune.tuned(by_label, search, workdir, count, held) if search else {}
    by_label = tune.applied(by_label, choices)
    options |= {'tuned': tuple(search.grid) if search else ()}
    result = run_methods(by_label, workdir, count, search, held, **options)
    print(f'\n{result.table}\n\nTables: {workdir}/table.md, .csv, .tex, .json')
    no_figures = draw(result, workdir, '' if swept is None else swept.flag)
    print(no_figures or f'Figures: {workdir}/plots, and plots/ of runs with clusters')
    print(pages.written(workdir, f.reference))
    result.check()
    tune.check(choices)


def define_flags() -> None:
  """Defines the flags of this binary."""
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  pages.define()
  flags.DEFINE(
    methods.ListParser(),
    'algorithms',
    ['non_fed', 'fed_avg', 'fesem(4)'],
    'Methods, NAME, NAME(K) or NAME(K;FLAG=VALUE;...), of '
    f'{", ".join(algorithms.METHODS)}, or MODULE:FUNCTION for a method of your own. '
    'LABEL=NAME(...) is called LABEL in tables, figures and folders.',
    serializer=flags.ListSerializer(','),
  )
  flags.DEFINE_bool(
    'oracle',
    False,
    'Also run the oracle (FedAvg within the true groups of the clients), and compare '
    'every method with it.',
  )
  flags.DEFINE_integer(
    'num_seeds',
    5,
    'Seeds --seed, --seed + 1, ...',
    lower_bound=1,
    upper_bound=tune.MOST_SEEDS,
  )
  flags.DEFINE_list(
    'columns',
    [],
    f'Columns of the tables, of {", ".join(tables.COLUMNS)}; default: all but '
    'finetuned. table.csv and table.json have all.',
  )
  flags.DEFINE_list(
    'redo',
    [],
    'Methods, named as in the table, whose runs are deleted first.',
  )
  flags.DEFINE_enum(
    'correct',
    'none',
    list(paired.CORRECTIONS),
    'Correction of the p values of paired tests for the number of methods.',
  )
  flags.DEFINE_string(
    'sweep',
    '',
    'FLAG:VALUE,VALUE, e.g. clients_per_round:5,10,0: compares each method at each '
    'value of a flag of data, model, training, run or methods, or of one number of the '
    'partition, as in partition.alpha:0.1,1. WORKDIR/plots/sweep.png '
    'has the metrics by value.',
  )
  flags.DEFINE_string(
    'reference',
    '',
    'Method whose metrics are subtracted from those of the others, paired over seeds, '
    'named as in the table, e.g. fed_avg or fesem(4); default: the method with the '
    'best deployed metric: the highest micro accuracy, or the lowest RMSE.',
  )
  flags.DEFINE_multi_string(
    'tune',
    [],
    'FLAG:VALUE,VALUE, e.g. learning_rate:0.01,0.03,0.1: for each method the value '
    'that is best on validation examples held out of the training split. FLAG may be '
    'an option of a method of your own. Given for several flags, every combination of '
    'the values that a method has is tried; an empty --tune= drops those of a preset.',
  )
  flags.DEFINE_enum(
    'tune_by',
    'deployed',
    list(tuning.KINDS),
    'Models whose micro accuracy (regression: RMSE) --tune compares: deployed or '
    'fine-tuned.',
  )
  flags.DEFINE_integer(
    'tune_seeds',
    3,
    f'Seeds over which --tune takes the mean, from --seed + {tune.MOST_SEEDS}.',
    lower_bound=1,
    upper_bound=tune.MOST_SEEDS,
  )
  flags.DEFINE_string('workdir', 'runs/compare', 'Folder of all runs and the table.')


if __name__ == '__main__':
  define_flags()
  start(main)
