"""Reports of a run: the record of each round, and the summary of all rounds."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.evaluation import evaluate, label_skew
from fesem_jax.tasks import Task
from fesem_jax.utils import provenance

Record = dict[str, Any]

# Eq. 6 stands still when a round changes it by no more than this share.
_SETTLED = 1e-3

_LISTED = 10  # Sizes of more clusters than these are summed up.


def round_record(number: int, info: RoundInfo, train: FederatedData) -> Record:
  """The line of `metrics.jsonl` on a round, without scores and time."""
  any_trained = info.trained > 0  # Otherwise there is no loss and no Eq. 6.
  entry: Record = {
    'round': number,
    'train_loss': float(info.train_loss) if any_trained else None,
    'trained': int(info.trained),
    'failed': int(info.failed),
  }
  if info.clusters is not None:
    assignment = np.asarray(info.clusters.assignment)[: len(train.info.names)]
    truth, joined = train.info.clusters, assignment < len(info.clusters.sizes)
    value = info.clusters.objective
    entry |= {
      'cluster_sizes': info.clusters.sizes.tolist(),
      'moved': int(info.clusters.moved),
      'objective': None if value is None or not any_trained else float(value),
      **evaluate.agreement(
        None if truth is None else truth[joined], assignment[joined]
      ),
    }
    if info.clusters.objective_parts is not None:
      local_step, e_step = info.clusters.objective_parts
      entry['objective_local_step'] = float(local_step) if any_trained else None
      entry['objective_e_step'] = float(e_step) if any_trained else None
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
    figure = task.primary
    of = ' of honest clients' * bool(measured.get('honest'))
    scores = measured.get('honest') or measured
    value = figure.text(scores['deployed'][task.primary_column])
    shown.append(f'{figure.name} {value}{of}')
  if sizes := record.get('cluster_sizes'):
    used = [size for size in sizes if size]
    listed = f'clusters {"/".join(map(str, sizes))}'
    some = f'{len(used)} clusters of {min(used, default=0)} to {max(used, default=0)}'
    shown.append(listed if len(sizes) <= _LISTED else some)
  return ', '.join(shown)


def outcome(history: Sequence[Record]) -> Record:
  """The part of a summary that follows from the records: final scores and clusters."""
  last = history[-1]
  of_clusters = None
  if 'moved' in last:
    moves = [r['round'] for r in history if r.get('moved')]
    of_clusters = {
      'sizes': last['cluster_sizes'],
      'ari': last['ari'],
      'nmi': last['nmi'],
      'ami': last['ami'],
      'objective': last['objective'],
      # The last round in which a client changed its cluster.
      'rounds_to_stable': moves[-1] if moves else 0,
    }
  return {
    'rounds': last['round'],
    'num_clusters': len(of_clusters['sizes']) if of_clusters else None,
    'deployed': last['deployed'],
    'finetuned': last['finetuned'],
    'finetuning_failed': last.get('finetuning_failed', 0),
    'clusters': of_clusters,
    **({'honest': last['honest']} if 'honest' in last else {}),
  }


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
  seed: int,
  label_counts: np.ndarray,
  measured: np.ndarray,
  unseen: Record | None,
  notes: Sequence[str],
  timing: Record,
  local: LocalTraining,
) -> Record:
  """Content of `summary.json`; `measured` [M] is `Task.num_measured`."""
  num_clients, task = len(label_counts), local.model.measured_as
  return {
    **{name: config.get(name) for name in ('algorithm', 'dataset', 'partition')},
    'num_clients': num_clients,
    'seed': seed,
    'task': task.name,
    **outcome(history),
    'unseen': unseen,
    'clients_without_test_examples': int((measured == 0).sum()),
    'label_skew': label_skew.label_skew(label_counts) if task.has_classes else None,
    'notes': list(notes),
    'timing': timing,
    **provenance.describe(local.mesh),
  }
