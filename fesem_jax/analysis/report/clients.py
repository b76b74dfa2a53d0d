"""The clients of a page: their points, figures, labels, and the worst and best ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.analysis.report.curves import rounded
from fesem_jax.analysis.report.runs import ReportedRun, first_of_each_method
from fesem_jax.data.class_names import class_names, most_frequent
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.truth import TrueClusters, true_clusters
from fesem_jax.tasks import Task
from fesem_jax.utils.display import printable

# Clients of one run and of all runs together that a page holds.
_MOST_OF_RUN, _MOST = 10_000, 60_000
# Clients and labels of the picture of labels.
_LABELED, _LABELS = 120, 60
_WORST = 10

# Columns of the table of clients that are no figures.
_KNOWN = ('names', 'examples', 'test_examples', 'true_cluster', 'cluster', 'honest')


def clients(runs: Sequence[ReportedRun], task: Task) -> dict[str, Any]:
  """The clients of the finished runs, which are of one task.

  Runs with the same clients share their names, sizes, true clusters and labels. The
  first seed of each method comes first; the others are there while `_MOST` clients are
  not reached.

  Returns `federations` and `runs`, each with the place of its federation, its figures,
  map and extremes; and `left_out`, the number of runs that had no room.
  """
  federations: list[dict[str, Any]] = []
  places: dict[bytes, int] = {}
  entries: list[dict[str, Any]] = []
  held = left_out = 0
  for i in first_of_each_method(runs):
    run, table = runs[i], runs[i].clients
    if table is None:
      continue
    shown = _shown(run)
    if entries and held + len(shown) > _MOST:
      left_out += 1
      continue
    held += len(shown)
    truth = true_clusters(table.true_cluster, run.portrait.get('truth_names'))
    federation = _federation(run, table, truth, shown)
    key = repr(federation).encode()
    if key not in places:
      places[key] = len(federations)
      federations.append(federation)
    entries.append(
      {'run': i, 'federation': places[key], 'count': len(table.names)}
      | {'measured_on': run.config.get('evaluate_on', 'test')}
      | _figures(table, shown)
      | _map(run, shown)
      | _extremes(table, truth, task)
      | _fairness(run)
    )
  return {'federations': federations, 'runs': entries, 'left_out': left_out}


def _shown(run: ReportedRun) -> np.ndarray:
  """Places of the clients that the page holds: those of the map and others, evenly."""
  assert run.clients is not None
  count = len(run.clients.names)
  if count <= _MOST_OF_RUN:
    return np.arange(count)
  mapped = run.portrait.get('sampled', np.array([], int))
  evenly = np.linspace(0, count - 1, _MOST_OF_RUN - len(mapped)).astype(int)
  return np.union1d(mapped, evenly)


def _federation(
  run: ReportedRun,
  table: ClientTable,
  truth: TrueClusters | None,
  shown: np.ndarray,
) -> dict[str, Any]:
  """The clients that runs on the same data have in common."""
  federation: dict[str, Any] = {
    'names': [printable(name, 60) for name in table.names[shown]],
    'examples': table.examples[shown].tolist(),
    'test_examples': table.test_examples[shown].tolist(),
  }
  if truth is not None:
    federation['truth'] = truth.of_client[shown].tolist()
    federation['truth_names'] = truth.names
  if table.honest is not None:
    federation['honest'] = table.honest[shown].astype(int).tolist()
  counts = run.portrait.get('label_counts')
  if counts is not None and counts.shape[1] > 1 and len(counts) == len(table.names):
    given, dataset = run.portrait.get('class_names'), str(run.config.get('dataset'))
    of_classes = class_names(dataset, counts.shape[1], given)
    federation['labels'] = _labels(
      [printable(n, 60) for n in of_classes], counts, shown
    )
  return federation


def _labels(
  names: Sequence[str], counts: np.ndarray, shown: np.ndarray
) -> dict[str, Any]:
  """Shares of labels in percent, of clients at even distances.

  `names` [L] are those of the classes, `counts` [M, L] are of training examples,
  `shown` are the places of the clients that the page holds; `clients` are places among
  them.
  """
  rows = np.unique(np.linspace(0, len(shown) - 1, _LABELED).astype(int))
  counts, names = most_frequent(counts, names, _LABELS)
  of_rows = counts[shown[rows]]
  shares = 100 * of_rows / np.maximum(of_rows.sum(axis=1, keepdims=True), 1)
  return {
    'names': names,
    'clients': rows.tolist(),
    'shares': [rounded(row, 3) for row in shares],
  }


def _figures(table: ClientTable, shown: np.ndarray) -> dict[str, Any]:
  """Cluster and figures of each client."""
  figures = {
    name: rounded(column[shown])
    for name, column in table.columns().items()
    if column is not None and name not in _KNOWN and column.dtype.kind in 'iuf'
  }
  entry: dict[str, Any] = {'figures': figures}
  if table.cluster is not None:
    entry['cluster'] = table.cluster[shown].tolist()
    entry['sizes'] = np.bincount(table.cluster).tolist()
  return entry


def _map(run: ReportedRun, shown: np.ndarray) -> dict[str, Any]:
  """The local models of the sampled clients in the plane; see `figure_data.draw`."""
  points = run.portrait.get('coordinates')
  if points is None or len(points) < 3:
    return {}
  if points.shape[1] < 2:
    points = np.pad(points, ((0, 0), (0, 1)))
  shares = 100 * np.pad(run.portrait['variance'], (0, 1))
  places = np.searchsorted(shown, run.portrait['sampled'])
  return {
    'map': {
      'clients': places.tolist(),
      'x': rounded(points[:, 0]),
      'y': rounded(points[:, 1]),
      'shares': rounded(shares[:2], 2),
    }
  }


def _extremes(
  table: ClientTable, truth: TrueClusters | None, task: Task
) -> dict[str, Any]:
  """The clients, without bad ones, whose deployed first figures are worst and best."""
  name = task.primary.name
  columns = table.columns()
  deployed, finetuned = (
    columns.get(f'deployed_{name}'),
    columns.get(f'finetuned_{name}'),
  )
  if deployed is None or finetuned is None:
    return {}
  sign = 1 if task.primary.higher_is_better else -1
  order = np.argsort(sign * deployed, kind='stable')
  order = order[~np.isnan(deployed[order])]  # Infinite ones are the worst.
  if table.honest is not None:
    order = order[table.honest[order]]
  most = min(_WORST, -(-len(order) // 2))
  last = order[::-1][: min(_WORST, len(order) - most)]  # No client is in both.

  def lines(places: np.ndarray) -> list[list[Any]]:
    return [
      [
        printable(table.names[i], 60),
        int(table.examples[i]),
        int(table.test_examples[i]),
        None if table.cluster is None else int(table.cluster[i]),
        None if truth is None else truth.names[truth.of_client[i]],
        *rounded([deployed[i], finetuned[i]]),
      ]
      for i in places
    ]

  between = order[most : len(order) - len(last)]
  ties = [
    int((deployed[between] == deployed[shown[-1]]).sum()) if len(shown) else 0
    for shown in (order[:most], last)
  ]
  return {
    'worst': lines(order[:most]),
    'best': lines(last),
    'ties': ties,
    'of_honest': table.honest is not None,
    'of_one': int((table.test_examples[order] == 1).sum()),
  }


def _fairness(run: ReportedRun) -> dict[str, Any]:
  """How evenly the figure of the deployed models is spread; {} where it is unknown."""
  fairness = ((run.summary or {}).get('fairness') or {}).get('deployed') or {}
  names = ('worst_decile', 'deviation', 'jain')
  if any(fairness.get(name) is None for name in names):
    return {}
  return {'fairness': rounded([fairness[name] for name in names])}
