r"""Tells whether groups of clients are separable, before a long run.

  fesem-separation --dataset=digits --partition=rotated \
      --num_clusters_list=2,3,4,5,6 --workdir=runs/separation

Clusters of the clients' gradients on one half of their training examples are tried on
the other half, in seconds; nothing is trained. The manual's page Regret says how.
WORKDIR gets separation.json and plots/separation.{png,svg}.
"""

import json
import pathlib
from typing import Any

import numpy as np
from absl import flags

from fesem_jax.analysis import separation
from fesem_jax.core import sharding
from fesem_jax.evaluation.agreement import adjusted_rand_index
from fesem_jax.run.workdir import locked
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Column, Table

from . import flags as experiment_flags
from .build import build_local, build_model
from .select_k import parse_list, some_clients
from .start import no_positional, start

# Column of the printed table -> field of a row, and the digits that are shown.
_COLUMNS = {
  'ratio of variances': ('pseudo_f', 2),
  'without clusters': ('of_one_cloud', 2),
  'p': ('p_value', 2),
  'explained': ('explained', 2),
  'agreement': ('agreement', 2),
  'ARI': ('ari', 2),
}


def measure(config: dict[str, Any], list_of_k: list[int], by: str) -> dict[str, Any]:
  """Entries of separation.json of a configuration; `by` is one of `separation.BY`."""
  f = flags.FLAGS
  train = some_clients(config, f.data_dir, f.separation_clients)
  fewer = list_of_k[-1] < train.num_clients
  check(fewer, f'num_clusters_list: there are {train.num_clients} clients')
  machine = experiment_flags.machine()
  local = build_local(config, build_model(config, train), train, machine)
  with progress_lines.shown(experiment_flags.progress()):
    measured = separation.separation(
      local,
      train,
      list_of_k,
      by=by,
      epochs=config['local_epochs'],
      models=f.separation_models,
      seed=config['seed'],
      data_placement=machine['data_placement'],
    )
  truth = train.info.clusters
  rows = []
  for row, clusters in zip(measured.rows, measured.clusters, strict=True):
    ari = None
    if truth is not None:
      ari = float(adjusted_rand_index(np.asarray(truth)[measured.clients], clusters))
    is_apart = separation.told_apart(row)
    rows.append(row._asdict() | {'told_apart': is_apart, 'ari': ari})
  return {
    'verdict': separation.verdict(measured),
    'dataset': config['dataset'],
    'partition': config['partition'],
    'by': by,
    'seed': config['seed'],
    'num_clients': len(measured.clients),
    'left_out': train.num_clients - len(measured.clients),
    'noise': measured.noise,
    'p_differ': measured.p_differ,
    'examples_per_client': measured.examples,
    'detectable': measured.detectable,
    'rows': rows,
    'settings': settings_of(config, list_of_k),
  }


def settings_of(config: dict[str, Any], list_of_k: list[int]) -> dict[str, Any]:
  """The settings of a result: the configuration and the flags of this binary."""
  names = ('separation_clients', 'separation_by', 'separation_models')
  own = {name: flags.FLAGS[name].value for name in names}
  return config | own | {'num_clusters_list': list_of_k}


def table_of(rows: list[dict[str, Any]]) -> Table:
  """The rows as a table for a terminal."""
  shown = [
    Column(name, head, f'.{digits}f') for head, (name, digits) in _COLUMNS.items()
  ]
  lines = [
    [
      row['num_clusters'], *(row[c.key] for c in shown),
      'yes' if row['told_apart'] else 'no',
    ]
    for row in rows
  ]  # fmt: skip
  last = Column('told_apart', 'separated')
  return Table([Column('num_clusters', 'K', 'd'), *shown, last], lines)


def draw(result: dict[str, Any], workdir: pathlib.Path) -> str:
  """Draws the figure; returns where it is, or why there is none."""
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional.
    return str(e)
  partition = result['partition'] or 'natural clients'
  title = f'{result["dataset"]}, {partition}, {result["num_clients"]} clients'
  figure = plots.separation_by_k(result['rows'], title)
  written = plots.save(figure, workdir / 'plots' / 'separation')
  return f'Figure: {written[0]} (and .svg)'


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  list_of_k = parse_list(f.num_clusters_list)
  sharding.setup_devices(f.num_devices)
  config = experiment_flags.configuration('fed_avg', {})
  workdir = pathlib.Path(f.workdir)
  result = measure(config, list_of_k, f.separation_by)
  with locked(workdir):
    write_atomically(workdir / 'separation.json', json.dumps(result, indent=1) + '\n')
    figure = draw(result, workdir)
  print(f'{table_of(result["rows"])}\n\n{result["verdict"]}\n')
  if result['left_out']:
    print(f'{result["left_out"]} clients of a single example are left out.')
  print(f'{workdir}/separation.json\n{figure}')


def define_flags() -> None:
  """Defines the flags that only this binary has, and --workdir."""
  flags.DEFINE_list(
    'num_clusters_list', list('23456'), 'Numbers of groups K to try, ascending.'
  )
  flags.DEFINE_integer(
    'separation_clients',
    200,
    'Random clients that are measured; all, if there are fewer.',
    lower_bound=3,
    upper_bound=2000,
  )
  flags.DEFINE_enum(
    'separation_by',
    'gradients',
    list(separation.BY),
    'What is compared: full-batch gradients, or what --local_epochs change.',
  )
  flags.DEFINE_integer(
    'separation_models',
    5,
    'Random models at which clients are compared, of --seed, --seed + 1, ...',
    lower_bound=1,
    upper_bound=100,
  )
  flags.DEFINE_string(
    'workdir', 'runs/separation', 'Folder of separation.json and the figure.'
  )


if __name__ == '__main__':
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  define_flags()
  start(main)
