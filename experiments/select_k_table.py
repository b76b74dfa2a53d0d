"""The figures of each number of clusters, as rows, plain text and CSV."""

from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.analysis import num_clusters, tables
from fesem_jax.evaluation.agreement import adjusted_rand_index
from fesem_jax.utils.text_tables import Cell, Column, Table, csv_text

Row = dict[str, Any]


def row_of(
  summaries: list[dict[str, Any] | None],
  assignments: list[np.ndarray],
  silhouettes: list[dict[str, Any]],
  place: int,
  k: int,
  truth: np.ndarray | None = None,
) -> Row:
  """The figures of one K, as NAME_mean and NAME_std; accuracies in percent.

  'finetuned' and 'deployed' are the first figure of the 'task'.

  Args:
    summaries: of the run of each seed, None for one that diverged; empty without runs.
    assignments: of each seed that finished, [S] int cluster of each client or -1.
    silhouettes: from `select_k.silhouettes_of_seeds`.
    place: of K in the list.
    k: K.
    truth: [S] true cluster of each client; None if unknown.
  """
  table = tables.over_seeds({str(k): summaries})[0]
  done = [s for s in summaries if s is not None]
  row: Row = {
    'num_clusters': k,
    'task': table['task'],
    'seeds': len(silhouettes),
    'diverged': table['diverged'],
  }
  for kind in ('finetuned', 'deployed'):
    mean, std = table[f'{kind}_{tasks.of(table).primary_column}'] or (None, None)
    row |= {f'{kind}_mean': mean, f'{kind}_std': std}
  row |= _mean_and_std('distance', [s['clusters']['objective'] for s in done])
  of_models = [s['silhouette'][place] for s in silhouettes]
  clouds = [[cloud[place] for cloud in s['of_clouds']] for s in silhouettes]
  known = of_models[0] is not None
  row |= _mean_and_std('silhouette', of_models if known else [])
  row['silhouette_of_one_cloud'] = float(np.mean(clouds)) if known else None
  p_values = [
    num_clusters.p_value(s, c) for s, c in zip(of_models, clouds, strict=True) if known
  ]
  row['p_value'] = float(np.median(p_values)) if known else None
  row['stability'] = num_clusters.stability(assignments) if k > 1 else None
  row['ari'] = table['ari']
  if not summaries and truth is not None:
    of_seeds = [adjusted_rand_index(truth[a >= 0], a[a >= 0]) for a in assignments]
    row['ari'] = float(np.mean(of_seeds))
  sizes = [s['clusters']['sizes'] for s in done]
  if not summaries:
    sizes = [np.bincount(a[a >= 0], minlength=k).tolist() for a in assignments]
  row['sizes'] = [sorted(of_seed, reverse=True) for of_seed in sizes]
  return row


def _mean_and_std(name: str, values: list[float | None]) -> Row:
  """Mean and sample standard deviation over seeds; None where there is none."""
  known = [v for v in values if v is not None]
  mean = float(np.mean(known)) if known else None
  std = float(np.std(known, ddof=1)) if len(known) > 1 else None
  return {f'{name}_mean': mean, f'{name}_std': std}


# Heading -> the figure, and its digits.
_COLUMNS = {
  'fine-tuned': ('finetuned', 1), 'deployed': ('deployed', 1),
  'distance': ('distance', 3), 'silhouette': ('silhouette', 3),
  'without clusters': ('silhouette_of_one_cloud', 3), 'p': ('p_value', 2),
  'stability': ('stability', 2), 'ARI': ('ari', 2),
}  # fmt: skip


def table_of(rows: list[Row]) -> Table:
  """The rows as a table for a terminal."""
  columns = [Column('num_clusters', 'K', 'd')] + [
    Column(name, head, f'.{digits}f', '', True)
    for head, (name, digits) in _COLUMNS.items()
  ]
  lines = []
  for row in rows:
    digits = tasks.of(row).primary.digits
    columns[1:3] = [c._replace(form=f'.{digits}f') for c in columns[1:3]]
    line = [Cell(row['num_clusters'], after='*' * tables.lacks_seeds(row))]
    for name, _ in _COLUMNS.values():
      mean = row.get(f'{name}_mean', row.get(name))
      line.append(Cell(mean, row.get(f'{name}_std'), instead='-'))
    sizes = '/'.join(map(str, row['sizes'][0])) if row['sizes'] else 'diverged'
    lines.append([*line, sizes])
  seeds, of = max(row['seeds'] for row in rows), tasks.of(rows[0]).primary.title
  notes = [
    f'{of} of validation examples; ±: sample standard deviation over {seeds} seeds.'
  ]
  notes += tables.diverged_note(rows)
  return Table([*columns, Column('sizes', 'sizes, first seed')], lines, notes=notes)


def as_csv(rows: list[Row]) -> str:
  """The table as CSV; sizes as 20/20 for each seed, nothing for no figure."""
  sizes = [' '.join('/'.join(map(str, s)) for s in row['sizes']) for row in rows]
  lines = [
    [*(row | {'sizes': text}).values()] for row, text in zip(rows, sizes, strict=True)
  ]
  return csv_text(list(rows[0]), lines)
