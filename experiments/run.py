r"""Runs one method on one data set.

  fesem-run
  fesem-run --algorithm=fed_avg --partition='dirichlet(0.1)'
  fesem-run --algorithm=ifca --num_clusters=4 --partition=rotated \
      --model=small_cnn --rounds=50 --clients_per_round=20 --workdir=runs/ifca
  fesem-run --dataset='npz(mine.npz)' --model=my_models:net --seed=1

The workdir gets metrics.jsonl, summary.json, clients.csv and models.npz. The same
command again continues where it stopped.
"""

import dataclasses
import pathlib
from typing import Annotated, Any

from absl import flags, logging

from fesem_jax import algorithms
from fesem_jax.analysis import tables
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.core import sharding
from fesem_jax.run.results.frames import Recorded, joined
from fesem_jax.utils import processes
from fesem_jax.utils.display import printable

from . import flags as experiment_flags
from . import methods, pages, specs
from .options import Kinds
from .start import no_positional, start


@dataclasses.dataclass(frozen=True)
class OneRun:
  """A run.

  Attributes:
    algorithm: Method: MODULE:FUNCTION, or one of
    workdir: Folder; default: runs/METHOD_DATASET_PARTITION_seedN.
  """

  algorithm: Annotated[str, Kinds(tuple(algorithms.METHODS))] = 'fesem'
  workdir: str = ''


def default_workdir(config: dict[str, Any]) -> pathlib.Path:
  method = f'{config["algorithm"]}{config.get("num_clusters") or ""}'
  method = method.replace(':', '_')
  dataset = config['dataset'].replace(':', '_').replace('/', '_')
  where = f'{dataset}_{config["partition"] or "default"}'
  return pathlib.Path('runs') / f'{method}_{where}_seed{config["seed"]}'


def chosen_configuration() -> dict[str, Any]:
  f = flags.FLAGS
  name, values = methods.parse_method(f.algorithm)
  options = {n: x for n, x in values.items() if n in methods.options(name)}
  options = experiment_flags.chosen_options() | options
  return experiment_flags.configuration(name, options) | values


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  group = processes.Group(f.coordinator_address, f.process_id, f.num_processes)
  sharding.setup_devices(f.num_devices, group, identical=f.identical)
  if not processes.is_first():
    logging.set_verbosity(logging.ERROR)
  config = chosen_configuration()
  workdir = pathlib.Path(f.workdir) if f.workdir else default_workdir(config)
  if processes.is_first():
    pages.prepare()
  result = specs.run(config, experiment_flags.machine(), workdir, say=_say)
  shown = {'report': f.report, 'columns': tuple(tables.COLUMNS)}
  recorded = Recorded.of(result, f.algorithm.strip(), config['seed'], config)
  table = Comparison(joined([recorded]), **shown).table
  _say(f'\n{table}\n')
  if (ended := result.summary.get('ended', 'finished')) != 'finished':
    _say(f'Ended after round {result.summary["rounds"]}: {printable(ended, 100)}')
  _say(f'In {workdir}; figures: fesem-report {workdir} --figures=DIR')
  if processes.is_first():
    print(pages.written(workdir))


def _say(text: str) -> None:
  if processes.is_first():
    print(text)


def define_flags() -> None:
  experiment_flags.define()
  flags.FLAGS.set_default('report_html', False)  # It takes as long as a small run.
  experiment_flags.define('processes', OneRun)


if __name__ == '__main__':
  define_flags()
  start(main)
