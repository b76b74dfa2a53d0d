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

import functools
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from fesem_jax import algorithms
from fesem_jax.analysis import tables, tuning
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.loop import Entry, Planned, run_entries
from fesem_jax.analysis.tuning import Search, Values
from fesem_jax.core import sharding
from fesem_jax.evaluation import paired
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import check

from . import flags as experiment_flags
from . import methods, pages, run, tune
from .build import HeldData, build_callbacks
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


def draw(comparison: Comparison, workdir: pathlib.Path, sweep: str = '') -> str:
  """Draws a comparison, and a sweep of a flag; a line on where the figures are."""
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional, the table is not.
    return str(e)
  with progress_lines.shown(experiment_flags.progress(), 'drawing figures'):
    plots.draw_comparison(comparison, workdir / 'plots')
    if sweep:
      flag = sweep.partition(':')[0]
      figure = plots.sweep_figure(comparison.frames, flag)
      plots.save(figure, workdir / 'plots' / 'sweep')
  return f'Figures: {workdir}/plots'


# How tuning runs differ from those that are reported, and what they write.
_TUNING = {'evaluate_on': 'validation', 'eval_every': 0, 'stop_after': 0}
_TUNING_OUTPUT = {'target': [], 'save_models': False}


def entries(
  by_label: tune.ByLabel,
  workdir: pathlib.Path,
  search: Search | None = None,
  say: Callable[[str], None] = print,
) -> dict[str, Entry]:
  """How the methods of a comparison run; `say` prints what the first run is."""
  held, machine = HeldData(), experiment_flags.machine()
  said = list[str]()

  def say_first(text: str) -> None:
    if not said or machine['verbose']:
      said.append(text)
      say(text)

  def planned(label: str, values: Values, seed: int, is_tuning: bool) -> Planned:
    first, *_ = by_label[label]
    config = first | values | {'seed': seed}
    folder, output = workdir / methods.folder_of(label), machine
    if is_tuning:
      config |= {name: x for name, x in _TUNING.items() if name in config}
      point = tuning.in_words(values).replace('/', '_')
      folder = workdir / 'tune' / folder.name / point
      output = machine | _TUNING_OUTPUT
    return run.plan(
      config, output, folder / f'seed{seed}', held=held, say=say_first,
      tuned=tuple(search.grid) if search else (),
      make_portrait=seed == first['seed'],
    )  # fmt: skip

  grid = search.grid if search else {}
  return {
    label: Entry(
      functools.partial(planned, label), tune.points(label, configs[0], grid)
    )
    for label, configs in by_label.items()
  }


def redo(labels: Sequence[str], workdir: pathlib.Path) -> None:
  """Deletes the runs of methods, and of their tuning."""
  for label in labels:
    name = methods.folder_of(label)
    check((workdir / name).is_dir(), f'redo: {workdir} has no {label!r}')
    for folder in (workdir / name, workdir / 'tune' / name):
      shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  sharding.setup_devices(f.num_devices)
  workdir = pathlib.Path(f.workdir)
  by_label = chosen_configurations()
  if f.sweep:
    by_label = tune.swept(f.sweep, by_label)
  tables.check_reference(f.reference, list(by_label))
  tables.check_columns(f.columns)
  build_callbacks(experiment_flags.machine())  # Raises before the first run.
  seeds = range(f.seed, f.seed + f.num_seeds)
  personal = methods.options_of_own(each[0]['algorithm'] for each in by_label.values())
  search = tune.parse(f.tune, f.tune_by, f.tune_seeds, seeds, personal)
  tune.check_grid(by_label, search)
  shown = {n: getattr(f, n) for n in ('reference', 'report', 'columns', 'correct')}
  with locked(workdir) as alone:
    if alone:
      remove_left_overs(workdir)
      redo(f.redo, workdir)
    result = run_entries(
      entries(by_label, workdir, search), seeds, search, folder=workdir,
      runs_at_once=f.runs_at_once, progress=experiment_flags.progress(), say=print,
      verbose=f.verbose, **shown,
    )  # fmt: skip
    print(f'\n{result.table}\n\nTables: {workdir}/table.md, .csv, .tex, .json')
    print(draw(result, workdir, f.sweep))
    print(pages.written(workdir, f.reference))
    result.check()


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
