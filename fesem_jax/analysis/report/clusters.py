"""The clusters of a page: sizes over rounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.analysis.report.runs import ReportedRun, first_of_each_method

_ROUNDS, _CLUSTERS = 200, 20


def clusters(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
  """Sizes of clusters of the runs that have any.

  Returns for each run its position as `run`, the `rounds`, the `names` of clusters and
  their `sizes` [R, K].
  """
  entries = []
  for i in first_of_each_method(runs):
    records = [r for r in runs[i].history if r.get('cluster_sizes')]
    if records:
      entries.append({'run': i} | _sizes_by_round(records))
  return entries


def _sizes_by_round(records: Sequence[Any]) -> dict[str, Any]:
  """Sizes of the largest clusters over rounds."""
  count = max(len(r['cluster_sizes']) for r in records)
  chosen = np.unique(np.linspace(0, len(records) - 1, _ROUNDS).astype(int))
  rows = [records[i]['cluster_sizes'] for i in chosen]
  sizes = np.array([[*row, *[0] * (count - len(row))] for row in rows])
  names = [str(k) for k in range(count)]
  if count > _CLUSTERS:
    order = np.argsort(-sizes[-1], kind='stable')
    top, others = np.sort(order[:_CLUSTERS]), order[_CLUSTERS:]
    of_others = sizes[:, others].sum(axis=1, keepdims=True)
    sizes = np.concatenate([sizes[:, top], of_others], axis=1)
    names = [*map(str, top), f'{len(others)} others']
  rounds = [records[i]['round'] for i in chosen]
  return {'rounds': rounds, 'names': names, 'sizes': sizes.tolist()}
