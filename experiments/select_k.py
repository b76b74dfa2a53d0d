r"""Chooses the number of clusters K for FeSEM (Section 5.2 of the paper).

  fesem-select-k --flagfile=rotated_digits \
      --num_clusters_list=1,2,3,4,5,6 --num_seeds=3 --workdir=runs/select_k

FeSEM(K) runs a few rounds for each K and seed, on random clients and never on test
examples. Recommended is the K whose clusters are clearer than those of one Gaussian
cloud and equal over seeds; the manual's page Experiments says how. --rounds and
--eval_every, which presets set, are not used.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from fesem_jax import data, tasks
from fesem_jax.analysis import num_clusters
from fesem_jax.analysis.runs_of_methods import given
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.evaluation.agreement import adjusted_rand_index
from fesem_jax.run.programs import Programs
from fesem_jax.run.results import saved_client_table
from fesem_jax.run.workdir import locked, remove_left_overs
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Cell, Column, Table

from . import flags as experiment_flags
from .build import build_local, build_model, load_data
from .many_runs import Count, Wanted, run_unless_diverged
from .start import no_positional, start

Splits = tuple[FederatedData, FederatedData]
Row = dict[str, Any]  # Metrics of a K, as NAME_mean and NAME_std.


def choose_clients(config: dict[str, Any], data_dir: str, count: int) -> Splits:
  """Training and validation split of a random `count` clients, or of all if fewer."""
  train, _ = load_data(config | {'evaluate_on': 'test'}, data_dir)
  if count < train.num_clients:
    # Loading draws natural clients as number 0 of this stream.
    rng = prng_streams.host_rng(config['seed'], prng_streams.SELECT, number=1)
    chosen = rng.choice(train.num_clients, count, replace=False)
    train = train.reorder(np.sort(chosen))
  return data.hold_out(train, config['seed'])


def first_models(
  configs: Sequence[dict[str, Any]], train: FederatedData
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Points [S, S] of the models from one common start, for each configuration.

  With [M] bool: clients with a finite model, which the points are of.
  """
  programs, machine = Programs(), experiment_flags.machine()
  local = build_local(configs[0], build_model(configs[0], train), train, machine)
  options = {'epochs': configs[0]['init_epochs'], 'programs': programs}
  options['cluster_on'] = configs[0]['cluster_on']
  options['data_placement'] = machine['data_placement']
  found = []
  for seed in (config['seed'] for config in configs):
    gram = num_clusters.inner_products(local, train, seed=seed, **options)
    finite = np.isfinite(gram.diagonal())
    check(finite.sum() > 1, 'learning_rate: models are not finite after init_epochs')
    gram = gram[np.ix_(finite, finite)]
    found.append((num_clusters.coordinates(gram), finite))
  return found


def select(
  config: dict[str, Any],
  list_of_k: list[int],
  num_seeds: int,
  splits: Splits,
  workdir: pathlib.Path,
) -> dict[str, Any]:
  """Runs what is missing, writes select_k.json and returns what it holds.

  `config` is of FeSEM on the chosen clients, but for K; its seed is the first of each
  K. `splits` are the training and the validation split of the chosen clients.
  """
  train, truth = splits[0], splits[0].info.clusters
  configs = [config | {'seed': config['seed'] + i} for i in range(num_seeds)]
  seeds = [each['seed'] for each in configs]
  with progress_lines.shown(experiment_flags.progress()):
    models = first_models(configs, train)
  rows, count = [], Count(len(list_of_k) * num_seeds)
  for k in list_of_k:
    row, clusters = _run(k, configs, splits, workdir, count)
    found = []
    for (points, finite), seed in zip(models, seeds, strict=True):
      found.append(num_clusters.against_one_cloud(points, k, seed) or (None,) * 3)
      if not config['rounds']:
        clusters.append(np.full(len(finite), -1))
        clusters[-1][finite] = num_clusters.k_means(points, k, seed)
    scores, clouds, p_values = zip(*found, strict=True)
    row |= _mean_and_std('silhouette', scores)
    known = row['silhouette_mean'] is not None
    row['silhouette_of_one_cloud'] = float(np.mean(clouds)) if known else None
    row['p_value'] = float(np.median(p_values)) if known else None
    row['stability'] = num_clusters.stability(clusters) if k > 1 else None
    row['ari'] = None
    if truth is not None and clusters:
      aris = [adjusted_rand_index(truth[c >= 0], c[c >= 0]) for c in clusters]
      row['ari'] = float(np.mean(aris))
    sizes = [np.bincount(c[c >= 0], minlength=k) for c in clusters]
    row['sizes'] = [sorted(of_seed.tolist(), reverse=True) for of_seed in sizes]
    rows.append(row)
  recommended, reason = num_clusters.recommend(rows)
  result: dict[str, Any] = {
    'recommended': recommended,
    'reason': reason,
    'task': train.task,
  }
  result |= {name: config[name] for name in ('dataset', 'partition', 'rounds')}
  result |= {'num_clients': train.num_clients, 'seeds': seeds}
  result['by_k'] = {str(row['num_clusters']): row for row in rows}
  write_atomically(workdir / 'select_k.json', json.dumps(result, indent=1) + '\n')
  return result


def _run(
  k: int,
  configs: Sequence[dict[str, Any]],
  splits: Splits,
  workdir: pathlib.Path,
  count: Count,
) -> tuple[Row, list[np.ndarray]]:
  """Metrics of FeSEM(K), and clusters [S] of each seed that finished."""
  label, folder = f'fesem({k})', workdir / f'fesem({k})'
  wanted = [
    Wanted(c | {'num_clusters': k}, folder / f'seed{seed}', f'{label}, seed {seed}')
    for c, seed in ((c, c['seed']) for c in configs if c['rounds'])
  ]
  ended: Sequence[Any] = []
  if wanted:
    ended = run_unless_diverged(
      wanted, Programs(), about=label, count=count, splits=splits, make_portrait=False
    )
  runs = zip(map(given, ended), wanted, strict=True)
  done = [(s, run.workdir) for s, run in runs if s is not None]
  task = tasks.TASKS[splits[0].task]
  row: Row = {'num_clusters': k, 'seeds': len(configs)}
  row['diverged'] = len(wanted) - len(done)
  for kind in ('finetuned', 'deployed'):
    scores = [task.primary.factor * s[kind][task.primary_column] for s, _ in done]
    row |= _mean_and_std(kind, scores)
  row |= _mean_and_std('distance', [s['clusters']['objective'] for s, _ in done])
  tables = [saved_client_table.read(path) for _, path in done]
  return row, [t.cluster for t in tables if t is not None and t.cluster is not None]


def _mean_and_std(name: str, values: Sequence[float | None]) -> Row:
  """Mean and sample standard deviation over seeds; None where there is none."""
  known = [v for v in values if v is not None]
  mean = float(np.mean(known)) if known else None
  std = float(np.std(known, ddof=1)) if len(known) > 1 else None
  return {f'{name}_mean': mean, f'{name}_std': std}


def table_of(result: dict[str, Any]) -> Table:
  """The metrics of each K as a table for a terminal."""
  primary = tasks.TASKS[result['task']].primary
  columns = {
      'finetuned': ('fine-tuned', primary.digits),
      'deployed': ('deployed', primary.digits),
      'distance': ('distance', 3), 'silhouette': ('silhouette', 3),
      'silhouette_of_one_cloud': ('without clusters', 3), 'p_value': ('p', 2),
      'stability': ('stability', 2), 'ari': ('ARI', 2),
  }  # fmt: skip
  lines = []
  for k, row in result['by_k'].items():
    line = [k]
    for name in columns:
      mean = row.get(f'{name}_mean', row.get(name))
      line.append(Cell(mean, row.get(f'{name}_std'), instead='-'))
    sizes = '/'.join(map(str, row['sizes'][0])) if row['sizes'] else 'diverged'
    lines.append([*line, sizes])
  heads = [Column(n, h, f'.{d}f', '', True) for n, (h, d) in columns.items()]
  heads = [Column('num_clusters', 'K', 'd'), *heads, Column('sizes', 'sizes')]
  seeds = len(result['seeds'])
  note = f'{primary.title}, validation; ±: standard deviation over {seeds} seeds.'
  diverged = [k for k, row in result['by_k'].items() if row.get('diverged')]
  lacking = [f'Seeds diverged for K = {", ".join(diverged)}.'] if diverged else []
  return Table(heads, lines, notes=[note, *lacking])


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  list_of_k = [int(k) for k in f.num_clusters_list]
  ascends = list_of_k == sorted(set(list_of_k)) and min(list_of_k, default=0) > 0
  check(ascends, 'num_clusters_list: must ascend from 1 or more, e.g. 1,2,3,4')
  options = experiment_flags.chosen_options()
  sharding.setup_devices(f.num_devices)
  config = experiment_flags.configuration('fesem', options)
  splits = choose_clients(config, f.data_dir, f.select_clients)
  count = splits[0].num_clients
  check(list_of_k[-1] <= count, f'num_clusters_list: there are {count} clients')
  config |= {'rounds': f.select_rounds, 'eval_every': 0, 'evaluate_on': 'validation'}
  # The seeds of the runs share the data of the first.
  config |= {'select_clients': count, 'data_seed': f.seed}
  workdir = pathlib.Path(f.workdir)
  with locked(workdir) as alone:
    if alone:
      remove_left_overs(workdir)
    result = select(config, list_of_k, f.num_seeds, splits, workdir)
    print(f'\n{table_of(result)}\n\n{result["reason"]}\n\nIn {workdir}: select_k.json')
    try:
      from fesem_jax import plots
    except ImportError as e:  # Figures are optional, the table is not.
      print(e)
      return
    title = f'{config["dataset"]}, {count} clients, {f.select_rounds} rounds'
    of = f'{tasks.TASKS[result["task"]].primary.title}, validation'
    rows, recommended = list(result['by_k'].values()), result['recommended']
    figure = plots.choosing_k(rows, recommended, title, of)
    print(f'Figure: {plots.save(figure, workdir / "plots" / "select_k")[0]} (and .svg)')


def define_flags() -> None:
  """Defines the flags that only this binary has, and --workdir."""
  flags.DEFINE_list(
    'num_clusters_list',
    ['1', '2', '3', '4', '5', '6'],
    'Numbers of clusters K to try, ascending.',
  )
  flags.DEFINE_integer(
    'select_clients', 100, 'Random clients that take part, or all if fewer.', 2, 1000
  )
  flags.DEFINE_integer(
    'select_rounds', 3, 'Rounds of each K; 0 clusters by k-means only.', 0, 10_000
  )
  flags.DEFINE_integer(
    'num_seeds', 3, 'Seeds of each K: --seed, --seed + 1, ...', 1, 1000
  )
  flags.DEFINE_string('workdir', 'runs/select_k', 'Folder of all results.')


if __name__ == '__main__':
  experiment_flags.define()
  flags.adopt_module_key_flags(experiment_flags)
  define_flags()
  start(main)
