"""Reports of a run: the record of each round, and the summary of all rounds."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.evaluation import evaluate, label_skew
from fesem_jax.tasks import Task
from fesem_jax.utils import provenance
from fesem_jax.utils.display import printable

Record = dict[str, Any]

# Eq. 6 stands still when a round changes it by no more than this share.
_SETTLED = 1e-3

_LISTED = 10  # Sizes of more clusters than these are summed up.


def round_record(number: int, info: RoundInfo, train: FederatedData) -> Record:
  """The line of `metrics.jsonl` on a round, without scores and time."""

  def number_of(x: Any) -> float | None:  # Without training, there is no loss or Eq. 6.
    return None if x is None or not info.trained else float(x)

  entry: Record = {'round': number, 'train_loss': number_of(info.train_loss)}
  entry |= {'trained': int(info.trained), 'failed': int(info.failed)}
  if (clusters := info.clusters) is not None:
    assignment = np.asarray(clusters.assignment)[: len(train.info.names)]
    truth, joined = train.info.clusters, assignment < len(clusters.sizes)
    truth = None if truth is None else truth[joined]
    entry |= {'cluster_sizes': clusters.sizes.tolist(), 'moved': int(clusters.moved)}
    entry |= {'objective': number_of(clusters.objective)}
    entry |= evaluate.agreement(truth, assignment[joined])
    if clusters.objective_parts is not None:
      local_step, e_step = clusters.objective_parts
      entry['objective_local_step'] = number_of(local_step)
      entry['objective_e_step'] = number_of(e_step)
  return entry


def clusters(assignment: np.ndarray, num_clusters: int, train: FederatedData) -> Record:
  """Sizes of the clusters of an assignment [M], and their agreement with the truth."""
  assignment = np.asarray(assignment)[: len(train.info.names)]
  sizes = np.bincount(assignment, minlength=num_clusters)
  agreement = evaluate.agreement(train.info.clusters, assignment)
  return {'cluster_sizes': sizes.tolist(), **agreement}


def settled(history: Sequence[Record], patience: int) -> bool:
  """True if no client moved and Eq. 6, if any, stood still in `patience` rounds > 0."""
  if not patience or len(history) <= patience or 'moved' not in history[-1]:
    return False
  recent = history[-patience:]
  if any(r['moved'] for r in recent):
    return False
  if all(r.get('objective') is None for r in history):
    return all(r['trained'] for r in recent)
  recent = history[-patience - 1 :]
  values = [x for r in recent if (x := r.get('objective')) is not None]
  still = all(abs(b - a) <= _SETTLED * abs(a) for a, b in itertools.pairwise(values))
  return len(values) > patience and still


def progress(record: Record, measured: Record, task: Task) -> str:
  """A line on a round: 'loss 0.523, accuracy 91.4 %, clusters 4/3'."""
  shown = []
  if record.get('train_loss') is not None:
    shown.append(f'loss {record["train_loss"]:.3f}')
  if measured:
    honest = measured.get('honest')
    value = task.primary.text((honest or measured)['deployed'][task.primary_column])
    shown.append(f'{task.primary.name} {value}' + ' of honest clients' * bool(honest))
  if sizes := record.get('cluster_sizes'):
    used = [size for size in sizes if size]
    listed = f'clusters {"/".join(map(str, sizes))}'
    some = f'{len(used)} clusters of {min(used, default=0)} to {max(used, default=0)}'
    shown.append(listed if len(sizes) <= _LISTED else some)
  return ', '.join(shown)


def timing(
  compile_seconds: float, total_seconds: float, seconds: Sequence[float], steps: int
) -> Record:
  """The `timing` of a summary; seconds and steps are of the rounds of this process."""
  return {
    'compile_seconds': compile_seconds,
    'seconds_per_round': float(np.median(seconds)) if seconds else None,
    'client_steps_per_second': steps / sum(seconds) if seconds else None,
    'total_seconds': total_seconds,
  }


def summary(
  history: Sequence[Record],
  config: Record,
  label_counts: np.ndarray,
  measured: np.ndarray,
  local: LocalTraining,
  **entries: Any,
) -> Record:
  """Content of `summary.json`; `measured` [M] is `Task.num_measured`."""
  last, task, cluster_summary = history[-1], local.model.measured_as, None
  if 'moved' in last:
    moves = [r['round'] for r in history if r.get('moved')]
    cluster_summary = {'sizes': last['cluster_sizes']}
    cluster_summary |= {name: last[name] for name in ('ari', 'nmi', 'ami', 'objective')}
    # The last round in which a client changed its cluster.
    cluster_summary['rounds_to_stable'] = moves[-1] if moves else 0
  return {
    **{name: config.get(name) for name in ('algorithm', 'dataset', 'partition')},
    'num_clients': len(label_counts),
    'task': task.name,
    'rounds': last['round'],
    'num_clusters': len(cluster_summary['sizes']) if cluster_summary else None,
    'deployed': last['deployed'],
    'finetuned': last['finetuned'],
    'finetuning_failed': last.get('finetuning_failed', 0),
    'clusters': cluster_summary,
    **({'honest': last['honest']} if 'honest' in last else {}),
    'clients_without_test_examples': int((measured == 0).sum()),
    'label_skew': label_skew.label_skew(label_counts) if task.has_classes else None,
    **entries,
    **provenance.describe(local.mesh),
  }


def text(summary: Record) -> str:
  """A finished run in three lines: rounds and time, scores, and clusters."""
  timing, ended = summary['timing'], summary.get('ended', 'finished')
  about = [f'{summary["rounds"]} rounds', f'{summary["num_clients"]} clients']
  about += [f'{timing["total_seconds"]:.1f} s'] if 'total_seconds' in timing else []
  about += [f'ended: {printable(ended, 100)}'] if ended != 'finished' else []
  lines = [', '.join(about), scores(summary)]
  if groups := summary.get('clusters'):
    sizes = ', '.join(str(size) for size in groups['sizes'] if size)
    lines.append(f'clusters of {sizes} clients')
  return '\n'.join(lines)


def scores(summary: Record) -> str:
  """'deployed micro-accuracy 97.4%, fine-tuned 96.1%, ARI 1.00'."""
  task, honest = tasks.of(summary), summary.get('honest')
  metric, values = task.primary, honest or summary
  deployed, finetuned = (
    metric.text(values[kind][task.primary_column]) for kind in ('deployed', 'finetuned')
  )
  ari = (honest or summary.get('clusters') or {}).get('ari')
  words = f'deployed micro-{metric.name} {deployed}, fine-tuned {finetuned}'
  words += '' if ari is None else f', ARI {ari:z.2f}'
  return words + ', of honest clients' * bool(honest)
