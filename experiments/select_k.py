r"""Chooses the number of clusters K for FeSEM (Section 5.2 of the paper).

  fesem-select-k --flagfile=rotated_digits \
      --num_clusters_list=1,2,3,4,5,6 --num_seeds=3 --workdir=runs/select_k

K-means clusters the models that random clients train from one common start, for each K
and seed, as in the first clustering of FeSEM. The recommended K has clusters that are
clearer than in one Gaussian cloud and equal over seeds; see the manual's page
Experiments. fesem-compare compares accuracies of fesem(2), fesem(3).
"""

import dataclasses
import json
import math
import pathlib
from typing import Annotated, Any

import numpy as np
from absl import flags

from fesem_jax import data
from fesem_jax.analysis import num_clusters
from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.ranges import Range
from fesem_jax.utils.text_tables import spread

from . import cluster
from . import flags as experiment_flags
from .build import build_local, build_model, load_data
from .start import no_positional, start


@dataclasses.dataclass(frozen=True)
class SelectK:
  """A choice of K.

  Attributes:
    num_clusters_list: Numbers of clusters K to try, ascending.
    select_clients: Random clients that take part, or all if fewer.
    num_seeds: Number of seeds of each K, from --seed.
    workdir: Folder of select_k.json.
  """

  num_clusters_list: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
  select_clients: Annotated[int, Range(2, 1000)] = 100
  num_seeds: Annotated[int, Range(1, 1000)] = 3
  workdir: str = 'runs/select_k'


def choose_clients(config: dict[str, Any], data_dir: str, count: int) -> FederatedData:
  """Training split of `count` random clients, without examples for validation."""
  train, _ = load_data(config | {'evaluate_on': 'test'}, data_dir)
  if count < train.num_clients:
    # Loading draws natural clients as number 0 of this stream.
    rng = prng_streams.host_rng(config['seed'], prng_streams.SELECT, number=1)
    chosen = rng.choice(train.num_clients, count, replace=False)
    train = train.reorder(np.sort(chosen))
  return data.hold_out(train, config['seed'])[0]


def table_of(result: dict[str, Any]) -> str:
  import pandas  # Slow to import.

  rows = result['by_k'].values()
  heads = {
    'silhouette': ('silhouette', '.3f'),
    'silhouette_of_one_cloud': ('without clusters', '.3f'),
    'p_value': ('p', '.2f'), 'stability': ('stability', '.2f'), 'ari': ('ARI', '.2f'),
  }  # fmt: skip

  def text(row: dict[str, Any], name: str, form: str) -> str:
    values = (row.get(f'{name}_mean', row.get(name)), row.get(f'{name}_std'))
    mean, std = (math.nan if x is None else x for x in values)
    return spread(mean, std, form) or '-'

  columns = {
    head: [text(row, name, form) for row in rows]
    for name, (head, form) in heads.items()
  }
  columns['sizes'] = ['/'.join(map(str, row['sizes'][0])) for row in rows]
  index = [f'K = {k}' for k in result['by_k']]
  note = f'±: standard deviation over {len(result["seeds"])} seeds.'
  return f'{pandas.DataFrame(columns, index)}\n{note}'


def _problem() -> tuple[dict[str, Any], LocalTraining, FederatedData, dict[str, Any]]:
  """Configuration, local training, data and options of `num_clusters`."""
  f, machine = flags.FLAGS, experiment_flags.machine()
  config = experiment_flags.configuration('fesem', experiment_flags.chosen_options())
  train = choose_clients(config, f.data_dir, f.select_clients)
  local = build_local(config, build_model(config, train), train, machine)
  options = {'epochs': config['init_epochs'], 'cluster_on': config['cluster_on']}
  return config, local, train, options | {'data_placement': machine['data_placement']}


def carry_out(seed: int) -> np.ndarray:
  """The `inner_products` of a seed, in a job."""
  cluster.setup_devices()
  _, local, train, options = _problem()
  return num_clusters.inner_products(local, train, seed=seed, **options)


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  list_of_k, seeds = list(f.num_clusters_list), range(f.seed, f.seed + f.num_seeds)
  ascends = list_of_k == sorted(set(list_of_k)) and min(list_of_k, default=0) > 0
  check(ascends, 'num_clusters_list: must ascend from 1 or more, e.g. 1,2,3,4')
  cluster.setup_devices()
  config, local, train, options = _problem()
  count = train.num_clients
  check(list_of_k[-1] <= count, f'num_clusters_list: there are {count} clients')
  workdir = pathlib.Path(f.workdir)
  workdir.mkdir(parents=True, exist_ok=True)
  grams = list[np.ndarray]()
  if f.launcher:
    parts = {f'seed {seed}': seed for seed in seeds}
    grams = list(cluster.launch('select_k', parts, workdir).values())
    for gram in grams:
      if isinstance(gram, UserError):
        raise gram
  result = num_clusters.select_k(local, train, list_of_k, seeds, grams, **options)
  result |= {name: config[name] for name in ('dataset', 'partition')}
  write_atomically(workdir / 'select_k.json', json.dumps(result, indent=1) + '\n')
  print(f'\n{table_of(result)}\n\n{result["reason"]}\n\nIn {workdir}: select_k.json')


def define_flags() -> None:
  experiment_flags.define()
  experiment_flags.define(SelectK, cluster.Launch)


if __name__ == '__main__':
  define_flags()
  start(main)
