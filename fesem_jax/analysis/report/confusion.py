"""The confusion matrices of a page: which classes are taken for others, by cluster."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.analysis.report.runs import ReportedRun, first_of_each_method
from fesem_jax.data.class_names import class_names
from fesem_jax.utils.display import printable

# Numbers of the matrices of one run and of all runs together that a page holds.
_MOST_OF_RUN, _MOST = 50_000, 300_000


def confusion(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
  """The confusion matrices of the finished runs that have any and have room.

  The first seed of each method comes first. Returns for each run its place as `run`,
  the `names` [L] of the classes, the `clusters` [G] that have test examples (of all
  clients together, none), their `counts` [G, L, L] (see `figure_data.confused`), and
  whether clients among them are `bad`.
  """
  entries, room = [], _MOST
  for i in first_of_each_method(runs):
    held, dataset = runs[i].portrait, str(runs[i].config.get('dataset'))
    if 'confusion' not in held:
      continue
    counts = held['confusion']
    shown = np.flatnonzero(counts.any(axis=(1, 2)))
    size = counts[shown].size
    if not size or size > min(room, _MOST_OF_RUN):
      continue
    room -= size
    table = runs[i].clients
    names = class_names(dataset, counts.shape[1], held.get('class_names'))
    clustered = len(held['assignment']) > 0
    entries.append(
      {
        'run': i,
        'names': [printable(name, 60) for name in names],
        'clusters': shown.tolist() if clustered else [],
        'counts': counts[shown].tolist(),
        'bad': table is not None and table.honest is not None,
        'measured_on': runs[i].config.get('evaluate_on', 'test'),
      }
    )
  return entries
