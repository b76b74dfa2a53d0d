"""A run, or the mean of several, in three lines of text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.run.results import costs
from fesem_jax.utils.display import printable

Summary = Mapping[str, Any]


def text(summary: Summary) -> str:
  """Rounds and time, metrics after the last round, and clusters or costs."""
  timing, ended = summary['timing'], summary.get('ended', 'finished')
  about = [f'{summary["rounds"]} rounds', f'{summary["num_clients"]} clients']
  about += [f'{timing["total_seconds"]:.1f} s'] if 'total_seconds' in timing else []
  about += [f'ended: {printable(ended, 100)}'] if ended != 'finished' else []
  lines = [', '.join(about), metrics([summary])]
  if clusters := summary.get('clusters'):
    sizes = ', '.join(str(size) for size in clusters['sizes'] if size)
    lines.append(f'clusters of {sizes} clients')
  elif sent := costs.as_text(summary.get('costs') or {}):
    lines.append(sent)
  return '\n'.join(lines)


def metrics(summaries: Sequence[Summary]) -> str:
  """'deployed micro-accuracy 97.4%, fine-tuned 96.1%, ARI 1.00', means over runs."""
  if not summaries:
    return 'diverged'
  task = tasks.of(summaries[0])
  figure, column = task.primary, task.primary_column
  scores = [summary.get('honest') or summary for summary in summaries]
  deployed, finetuned = (
    figure.text(float(np.mean([score[kind][column] for score in scores])))
    for kind in ('deployed', 'finetuned')
  )
  words = f'deployed micro-{figure.name} {deployed}, fine-tuned {finetuned}'
  groups = [s.get('honest') or s.get('clusters') or {} for s in summaries]
  ari = [group['ari'] for group in groups if group.get('ari') is not None]
  words += f', ARI {np.mean(ari):z.2f}' if ari else ''
  return words + ', of honest clients' * bool(summaries[0].get('honest'))
