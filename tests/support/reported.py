"""Hand-made workdirs that the tests of reports read."""

import json

import numpy as np
import pandas as pd

from fesem_jax.run.results import client_table
from fesem_jax.tasks import CLASSIFICATION

ROUNDS = 4


def scores(task, value):
  return dict.fromkeys(task.columns, value)


def value_of(seed, number, gain=0.0):
  """The metrics of a round."""
  return 0.3 + 0.1 * number + 0.01 * seed + gain


def clients_of(names, task=CLASSIFICATION, clusters=2, gain=0.0):
  """Metrics of clients; those of the first two have no test examples."""
  count = len(names)
  accuracy = np.linspace(0.2, 0.9, count) + gain
  accuracy[:2] = np.nan
  columns = {
    'client': names,
    'examples': np.arange(count) + 5,
    'test_examples': np.where(np.isnan(accuracy), 0, 3),
    'true_cluster': np.arange(count) % 2,
  }
  if clusters:
    columns['cluster'] = np.arange(count) % clusters
  for kind in ('deployed', 'finetuned'):
    for i, metric in enumerate(task.metrics):
      columns[f'{kind}_{metric.name}'] = accuracy + i / 100
  return pd.DataFrame(columns)


def write_run(
  folder,
  method='fesem',
  seed=0,
  clusters=2,
  task=CLASSIFICATION,
  names=None,
  gain=0.0,
  finished=True,
):
  """Writes a run of some clients, finished or in its third round."""
  folder.mkdir(parents=True)
  names = [f'c{i:02d}' for i in range(12)] if names is None else names
  config = {'algorithm': method, 'seed': seed, 'dataset': 'toy', 'rounds': ROUNDS}
  if clusters:
    config['num_clusters'] = clusters
  (folder / 'config.json').write_text(json.dumps(config))
  table = clients_of(names, task, clusters, gain)
  records = []
  for number in range(1, ROUNDS + 1 if finished else ROUNDS):
    record = {'round': number, 'train_loss': 1 / number, 'seconds': 0.5}
    if clusters:
      sizes = np.bincount(table['cluster']).tolist()
      record |= {'cluster_sizes': sizes, 'moved': ROUNDS - number, 'objective': 0.2}
      record |= {'ari': 0.5, 'nmi': 0.5, 'ami': 0.5}
      record |= {'objective_local_step': 0.3, 'objective_e_step': 0.25}
    if number % 2 == 0:
      value = value_of(seed, number, gain)
      record |= {k: scores(task, value) for k in ('deployed', 'finetuned')}
    records.append(record)
  lines = ''.join(json.dumps(record) + '\n' for record in records)
  (folder / 'metrics.jsonl').write_text(lines)
  if finished:
    _finish(folder, config, task, table, records[-1])
  return folder


def _finish(folder, config, task, table, last):
  count, cluster = len(table), table.get('cluster', pd.Series(dtype=int)).to_numpy()
  result = None
  if 'moved' in last:
    result = {k: last[k] for k in ('ari', 'nmi', 'ami', 'objective')}
    result |= {'sizes': last['cluster_sizes'], 'rounds_to_stable': 1}
  summary = {
    'algorithm': config['algorithm'],
    'num_clients': count,
    'seed': config['seed'],
    'task': task.name,
    'rounds': ROUNDS,
    'deployed': last['deployed'],
    'finetuned': last['finetuned'],
    'clusters': result,
    'unseen': None,
    'clients_without_test_examples': 2,
    'notes': [],
    'timing': {
      'compile_seconds': 1.5, 'seconds_per_round': 0.5, 'total_seconds': 4.0,
      'client_steps_per_second': 1234.5,
    },
    'device': {'platform': 'cpu', 'kind': 'cpu', 'count': 2, 'processes': 1},
    'versions': {'python': '3.11', 'jax': '0.10.2'},
    'commit': 'abc123',
  }  # fmt: skip
  (folder / 'summary.json').write_text(json.dumps(summary))
  client_table.write(folder, table)
  rng = np.random.default_rng(config['seed'])
  arrays = {
    'names': table['client'].to_numpy(str),
    'truth': table['true_cluster'].to_numpy(),
    'truth_names': np.array(['upright', 'turned']),
    'label_counts': rng.integers(0, 9, (count, 1 if task != CLASSIFICATION else 10)),
  }
  if len(cluster):
    clusters, sampled = max(cluster) + 1, np.arange(count)[:: max(1, count // 400)]
    images = rng.integers(0, 16, (clusters, 3, 4, 8, 8))
    arrays |= {
      'assignment': cluster,
      'sampled': sampled[:400],
      'coordinates': rng.normal(size=(len(sampled[:400]), 3)).astype(np.float32),
      'variance': np.array([0.6, 0.25, 0.15], np.float32),
      'sheet_images': images.astype(np.uint8),
      'sheet_clients': np.arange(clusters * 3).reshape(clusters, 3) % count,
    }
  np.savez(folder / 'clients.npz', **arrays)


METHODS = {'fed_avg': (0, -0.1), 'fesem(2)': (2, 0.0), 'hypo_cluster(2)': (2, -0.05)}


def write_comparison(folder, seeds=(0, 1), methods=tuple(METHODS)):
  """Runs of three methods, in the folders that fesem-compare makes."""
  for label in methods:
    clusters, gain = METHODS[label]
    for seed in seeds:
      accuracy = gain + (0.02 * seed if clusters else 0)
      write_run(
        folder / label / f'seed{seed}', label.partition('(')[0], seed, clusters,
        gain=accuracy,
      )  # fmt: skip
  return folder
