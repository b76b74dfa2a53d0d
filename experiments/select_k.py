r"""Chooses the number of clusters K for FeSEM (Section 5.2 of the paper).

  fesem-select-k --flagfile=rotated_digits \
      --num_clusters_list=1,2,3,4,5,6 --num_seeds=3 --workdir=runs/select_k

FeSEM(K) runs a few rounds for each K and seed, on random clients and never on test
examples. Recommended is the K whose clusters are clearer than those of one Gaussian
cloud and equal over seeds; the manual's page Experiments says how. --rounds and
--eval_every, which presets set, are not used.
"""

import contextlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from fesem_jax import data, tasks
from fesem_jax.analysis import common_start, num_clusters
from fesem_jax.analysis.runs_of_methods import given
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.programs import Programs
from fesem_jax.run.results import metrics_file, saved_client_table
from fesem_jax.run.resume import digest_of_data
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError, check

from . import flags as experiment_flags
from . import model_starts, plugins
from . import select_k_table as table
from .build import build_local, build_model, load_data
from .many_runs import Count, Wanted, run_unless_diverged
from .start import no_positional, start

# More would compare more pairs of models than a choice of K needs.
_MAX_CLIENTS = 1000


def parse_list(values: Sequence[str]) -> list[int]:
  """['1', '2'] -> [1, 2]; raises `UserError` unless these are ascending numbers."""
  numbers = [int(v) for v in values]
  fits = numbers and numbers[0] >= 1 and numbers == sorted(set(numbers))
  check(fits, 'num_clusters_list: must ascend from 1 or more, e.g. 1,2,3,4')
  return numbers


def choose_clients(
  config: dict[str, Any], data_dir: str, count: int
) -> tuple[FederatedData, FederatedData]:
  """Training and validation split of a random `count` clients, or of all if fewer."""
  return data.hold_out(some_clients(config, data_dir, count), config['seed'])


def some_clients(config: dict[str, Any], data_dir: str, count: int) -> FederatedData:
  """Training split of a random `count` clients, or of all if there are fewer."""
  train, _ = load_data(config | {'evaluate_on': 'test'}, data_dir)
  if count < train.num_clients:
    # Loading draws natural clients as number 0 of this stream.
    rng = prng_streams.host_rng(config['seed'], prng_streams.SELECT, number=1)
    chosen = rng.choice(train.num_clients, count, replace=False)
    train = train.reorder(np.sort(chosen))
  return train


def silhouettes_of_seeds(
  configs: list[dict[str, Any]],
  train: FederatedData,
  list_of_k: list[int],
  workdir: pathlib.Path,
) -> list[dict[str, Any]]:
  """Silhouettes of models from one common start, of each seed.

  Finished seeds are read from workdir/silhouettes/. Returns, for each configuration,
  `silhouette` by K, `of_clouds`, a list of the same for each cloud, and `clusters` by
  K, the cluster of each client, -1 for one whose model is not finite.
  """
  programs = Programs()
  machine = experiment_flags.machine()
  local = build_local(configs[0], build_model(configs[0], train), train, machine)
  digest = digest_of_data(train)
  of_seeds = []
  for config in configs:
    without = ('num_clusters', 'rounds')
    own = {k: v for k, v in config.items() if k not in without}
    own |= model_starts.identity(config)
    identity = own | {'num_clusters_list': list_of_k, 'data_digest': digest}
    path = workdir / 'silhouettes' / f'seed{config["seed"]}.json'
    held = metrics_file.read_object(path) or {}
    if held.get('config') != identity or plugins.is_own(config['model']):
      gram = common_start.inner_products(
        local,
        train,
        epochs=config['init_epochs'],
        seed=config['seed'],
        cluster_on=config['cluster_on'],
        data_placement=machine['data_placement'],
        programs=programs,
      )
      is_finite = np.isfinite(gram.diagonal())
      if is_finite.sum() < 2:
        raise UserError('learning_rate: models are not finite after init_epochs')
      with progress_lines.waiting_for(f'silhouettes of seed {config["seed"]}'):
        chosen = gram[np.ix_(is_finite, is_finite)], list_of_k, config['seed']
        of_models, of_clouds = num_clusters.against_one_cloud(*chosen)
        clusters = np.full((len(list_of_k), len(gram)), -1)
        clusters[:, is_finite] = num_clusters.clusterings(*chosen)
      held = {
        'silhouette': of_models,
        'of_clouds': of_clouds,
        'clusters': clusters.tolist(),
        'config': identity,
      }
      with contextlib.suppress(OSError):  # Writing says what is wrong.
        path.parent.mkdir(parents=True, exist_ok=True)
      write_atomically(path, json.dumps(held) + '\n')
    of_seeds.append(held)
  return of_seeds


def draw(
  rows: list[table.Row], recommended: int | None, title: str, workdir: pathlib.Path
) -> str:
  """Draws the figure; returns where it is, or why there is none."""
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional, the table is not.
    return str(e)
  of = f'{tasks.of(rows[0]).primary.title}, validation'
  figure = plots.choosing_k(rows, recommended, title, of)
  written = plots.save(figure, workdir / 'plots' / 'select_k')
  return f'Figure: {written[0]} (and .svg)'


def select(
  config: dict[str, Any],
  list_of_k: list[int],
  num_seeds: int,
  splits: tuple[FederatedData, FederatedData],
  workdir: pathlib.Path,
) -> dict[str, Any]:
  """Runs what is missing, writes the tables and recommends a K.

  `config` is of FeSEM on the chosen clients, but for K; its seed is the first of each
  K. `splits` are the training and the validation split of the chosen clients. Returns
  what select_k.json holds.
  """
  train, _ = splits
  seeds = [config['seed'] + i for i in range(num_seeds)]
  configs = [config | {'seed': seed} for seed in seeds]
  summaries: dict[int, list[dict[str, Any] | None]] = {k: [] for k in list_of_k}
  assignments: dict[int, list[np.ndarray]] = {k: [] for k in list_of_k}
  count = Count(len(list_of_k) * num_seeds)
  for k in list_of_k if config['rounds'] else ():
    programs = Programs()  # All seeds of one K run in the same compiled programs.
    label = f'fesem({k})'
    wanted = [
      Wanted(
        each | {'num_clusters': k}, workdir / label / f'seed{each["seed"]}',
        f'{label}, seed {each["seed"]}',
      )
      for each in configs
    ]  # fmt: skip
    ended = run_unless_diverged(
      wanted, programs, about=label, count=count, splits=splits, make_portrait=False
    )
    for own, outcome in zip(wanted, ended, strict=True):
      summary = given(outcome)
      summaries[k].append(summary)
      clients = saved_client_table.read(own.workdir) if summary else None
      if clients is not None and clients.cluster is not None:
        assignments[k].append(clients.cluster)
  with progress_lines.shown(experiment_flags.progress()):
    silhouettes = silhouettes_of_seeds(configs, train, list_of_k, workdir)
  if not config['rounds']:
    for place, k in enumerate(list_of_k):
      assignments[k] = [np.array(each['clusters'][place]) for each in silhouettes]
  rows = [
    table.row_of(
      summaries[k], assignments[k], silhouettes, place, k, train.info.clusters
    )
    for place, k in enumerate(list_of_k)
  ]
  recommended, reason = num_clusters.recommend(
    [
      num_clusters.Figures(
        row['num_clusters'],
        row['silhouette_mean'],
        row['silhouette_of_one_cloud'],
        row['p_value'],
        row['stability'],
      )
      for row in rows
    ]
  )
  result = {
    'recommended': recommended,
    'reason': reason,
    'dataset': config['dataset'],
    'partition': config['partition'],
    'num_clients': train.num_clients,
    'rounds': config['rounds'],
    'seeds': seeds,
    'rows': rows,
  }
  write_atomically(workdir / 'select_k.csv', table.as_csv(rows))
  write_atomically(workdir / 'select_k.json', json.dumps(result, indent=1) + '\n')
  return result


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  list_of_k = parse_list(f.num_clusters_list)
  options = experiment_flags.chosen_options()
  sharding.setup_devices(f.num_devices)
  config = experiment_flags.configuration('fesem', options)
  splits = choose_clients(config, f.data_dir, f.select_clients)
  count = splits[0].num_clients
  check(list_of_k[-1] <= count, f'num_clusters_list: there are {count} clients')
  config |= {
    'rounds': f.select_rounds,
    'eval_every': 0,
    'evaluate_on': 'validation',
    'select_clients': count,
    'data_seed': f.seed,  # The seeds of the runs share the data of the first.
  }
  workdir = pathlib.Path(f.workdir)
  with locked(workdir) as alone:
    if alone:
      remove_left_overs(workdir)
    result = select(config, list_of_k, f.num_seeds, splits, workdir)
    print(f'\n{table.table_of(result["rows"])}\n\n{result["reason"]}\n')
    title = f'{config["dataset"]}, {count} clients, {f.select_rounds} rounds'
    figure = draw(result['rows'], result['recommended'], title, workdir)
  print(f'Table: {workdir}/select_k.json, .csv\n{figure}')


def define_flags() -> None:
  """Defines the flags that only this binary has, and --workdir."""
  flags.DEFINE_list(
    'num_clusters_list',
    ['1', '2', '3', '4', '5', '6'],
    'Numbers of clusters K to try, ascending.',
  )
  flags.DEFINE_integer(
    'select_clients',
    100,
    'Random clients that take part; all, if there are fewer.',
    lower_bound=2,
    upper_bound=_MAX_CLIENTS,
  )
  flags.DEFINE_integer(
    'select_rounds',
    3,
    'Rounds of each K; 0 runs no FeSEM, and stability is that of k-means on the models '
    'before the first round.',
    lower_bound=0,
    upper_bound=10_000,
  )
  flags.DEFINE_integer(
    'num_seeds',
    3,
    'Seeds of each K, which decide models and k-means: --seed, --seed + 1, ...',
    lower_bound=1,
    upper_bound=1000,
  )
  flags.DEFINE_string(
    'workdir', 'runs/select_k', 'Folder of all runs, the table and the figure.'
  )


if __name__ == '__main__':
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  define_flags()
  start(main)
