"""Differences between two methods, paired over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax import tasks
from fesem_jax.tasks import Task
from fesem_jax.utils.display import in_markdown
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.text_tables import markdown

_LEVEL = 0.95


class Difference(NamedTuple):
  """A mean difference and its 95 % interval."""

  mean: float
  low: float | None  # lower end of the interval; None for a single pair
  high: float | None  # upper end


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
  """The mean of a - b with Student's 95 % interval, in float64.

  The pairs are the independent repeats of an experiment, such as its seeds. Clients of
  one run share models and are no independent repeats. `a` and `b` are [N] figures of
  two methods in the same order.

  The interval is that of `scipy.stats.ttest_rel(a, b).confidence_interval()`; with one
  pair there is none. Raises `UserError` without pairs, or if the lengths differ.
  """
  first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
  if first.shape != second.shape or first.ndim != 1 or not len(first):
    raise UserError(
      f'Pairs are as many figures of one method as of the other, at least one; not '
      f'{first.shape} and {second.shape}.'
    )
  differences = first - second
  mean, count = float(differences.mean()), len(differences)
  if count == 1:
    return Difference(mean, None, None)
  half = float(student_quantile(count) * differences.std(ddof=1) / np.sqrt(count))
  return Difference(mean, mean - half, mean + half)


def student_quantile(count: float) -> float:
  """Number of values in the 95 % interval of a mean: degrees of freedom plus 1."""
  from scipy import special  # Slow to import.

  return float(special.stdtrit(count - 1, (1 + _LEVEL) / 2))


# Label of each method -> its summary of each seed, None for one that diverged; a method
# that could not run has fewer.
Summaries = dict[str, list[dict[str, Any] | None]]

# Kinds of figures, and how tables call them.
KINDS = {'deployed': 'deployed', 'finetuned': 'fine-tuned'}

# What one method's figures are minus those of the reference: its 'method', the 'pairs',
# and 'mean', 'low' and 'high', of accuracies in percentage points, None where they are
# unknown.
Row = dict[str, Any]


# The label of the 'reference', None without finished runs, the 'task', and for each of
# `KINDS` the rows of the other methods.
Differences = dict[str, Any]


def figure(summary: dict[str, Any], kind: str) -> float:
  """The first figure of the task as tables show it, micro accuracy in percent.

  Where some clients are bad, that of the honest ones.
  """
  task = tasks.of(summary)
  scores = summary.get('honest', summary)[kind]
  return task.primary.factor * scores[task.primary_column]


def best(summaries: Summaries) -> str | None:
  """Label of the method with the best mean deployed figure, the first of equal ones.

  None where no run has finished.
  """
  better = task_of(summaries.values()).primary.better
  means = {
    label: float(np.mean([better(figure(s, 'deployed')) for s in finished]))
    for label, runs in summaries.items()
    if (finished := [s for s in runs if s is not None])
  }
  return max(means, key=lambda label: means[label]) if means else None


def task_of(runs: Iterable[Sequence[Mapping[str, Any] | None]]) -> Task:
  """The task of runs, by their summaries; classification where none has finished."""
  done = (s for each in runs for s in each if s is not None)
  return tasks.of(next(done, {}))


def against(summaries: Summaries, reference: str, kind: str = 'deployed') -> list[Row]:
  """Each method minus a reference method, paired over seeds.

  The seeds of all methods are the same, in the same order; a pair is a seed with which
  both methods finished. `reference` is a label of `summaries`, `kind` 'deployed' or
  'finetuned'. Returns a `Row` for each other method, in the order of `summaries`.
  """
  rows = []
  for label, runs in summaries.items():
    if label == reference:
      continue
    # A method that could not run has fewer summaries.
    both = zip(runs, summaries[reference], strict=False)
    pairs = [
      (figure(mine, kind), figure(other, kind))
      for mine, other in both
      if mine is not None and other is not None
    ]
    row: Row = dict.fromkeys(Difference._fields)
    if pairs:
      row = paired_difference(*zip(*pairs, strict=True))._asdict()
    rows.append({'method': label, 'pairs': len(pairs), **row})
  return rows


def check_reference(reference: str, labels: Sequence[str]) -> None:
  """Raises `UserError` unless the reference is empty or the label of a method."""
  if reference and reference not in labels:
    raise UserError(
      f'{argument("reference", reference)} is none of the methods of the table: '
      f'{", ".join(labels)}.'
    )


def differences(summaries: Summaries, reference: str = '') -> Differences:
  """Each method minus a reference method, for the deployed and the fine-tuned models.

  `reference` is the label of one; by default that with the best deployed figure.
  """
  chosen = reference or best(summaries)
  found: Differences = {'reference': chosen, 'task': task_of(summaries.values()).name}
  for kind in KINDS:
    rows = against(summaries, chosen, kind) if chosen else []
    found[kind] = [row for row in rows if row['pairs']]
  return found


def as_markdown(found: Differences, honest: bool = False) -> str:
  """A table for each kind of figures; empty where there is nothing to compare.

  Differences in favor of a method whose interval excludes zero are bold. `found` is
  made by `differences`; `honest` says whether figures are of the honest clients.
  """
  parts = []
  for kind, name in KINDS.items():
    if not found[kind]:
      continue
    of_honest = ', honest clients' if honest else ''
    of = tasks.of(found).primary
    unit = ', in percentage points' if of.percent else ''
    lines = [
      f'{name.capitalize()} micro {of.label}{of_honest} minus that of '
      f'{in_markdown(found["reference"])}{unit}: mean of the differences of each seed, '
      'and their 95 % interval (Student t; not adjusted for the number of methods; of '
      'repetitions with the same examples, not of other data); bold where it excludes '
      'zero in favor of the method',
      '',
    ]
    rows, digits = [], of.digits + 1
    most = max(row['pairs'] for row in found[kind])
    for row in found[kind]:
      interval, difference = 'one seed: no interval', f'{row["mean"]:+.{digits}f}'
      if row['low'] is not None:
        if min(of.better(row['low']), of.better(row['high'])) > 0:
          difference = f'**{difference}**'
        interval = f'{row["low"]:+.{digits}f} to {row["high"]:+.{digits}f}'
        if row['pairs'] < most:
          interval += f' ({row["pairs"]} seeds)'
      rows.append((in_markdown(row['method']), difference, interval))
    lines += markdown(['method', 'difference', '95 % interval'], rows)
    parts.append('\n'.join(lines) + '\n')
  return '\n'.join(parts)
