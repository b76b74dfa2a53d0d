"""Differences between two methods, paired over seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax import tasks
from fesem_jax.tasks import Task
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import Column, Table, cell

_LEVEL = 0.95
# Differences of figures this near each other, relative to the figures, are equal.
_ROUNDING = 10 * np.finfo(np.float64).eps

# How p values are corrected for the number of methods, and what tables say of it.
CORRECTIONS = {
  'none': 'not corrected for the number of methods',
  'holm': "corrected by Holm's method for the number of methods",
}


class Difference(NamedTuple):
  """A mean difference and its 95 % interval."""

  mean: float
  low: float | None  # lower end of the interval; None where there is none
  high: float | None  # upper end
  p: float | None  # of the paired t-test, two-sided


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
  """The mean of a - b with Student's 95 % interval, in float64.

  The pairs are the independent repeats of an experiment, such as its seeds. Clients of
  one run share models and are no independent repeats. `a` and `b` are [N] figures of
  two methods in the same order.

  The interval and p are those of `scipy.stats.ttest_rel(a, b)`. There are none with one
  pair, nor where all differences are equal but for rounding, which says nothing of how
  they vary; equal figures have an interval of no width and p is 1. Raises `UserError`
  without pairs, or if the lengths differ.
  """
  first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
  pairs = first.shape == second.shape and first.ndim == 1 and len(first) > 0
  check(pairs, f'paired_difference: shapes {first.shape} and {second.shape} differ')
  with np.errstate(invalid='ignore'):  # Of infinite figures, there is no interval.
    differences = first - second
    mean, count = float(differences.mean()), len(differences)
    deviation = float(differences.std(ddof=1)) if count > 1 else np.nan
  if count > 1 and not differences.any():
    return Difference(0.0, 0.0, 0.0, 1.0)
  size = max(np.abs(first).max(), np.abs(second).max())
  rounding = _ROUNDING * size if np.isfinite(size) else 0.0
  if count == 1 or np.ptp(differences) <= rounding:
    return Difference(mean, None, None, None)
  from scipy import special  # Slow to import.

  error = deviation / float(np.sqrt(count))
  p = float(2 * special.stdtr(count - 1, -abs(mean) / error))
  half = student_quantile(count) * error
  return Difference(mean, mean - half, mean + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
  """P values corrected for their number [N] by Holm's step-down method (1979)."""
  p = np.asarray(p_values, np.float64)
  order = np.argsort(p, kind='stable')
  steps = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
  adjusted = np.empty(len(p))
  adjusted[order] = np.minimum(steps, 1)
  return adjusted.tolist()


def _corrected(rows: Sequence[Difference], correct: str) -> list[float | None]:
  """P of each difference, corrected for the number of those that have one."""
  known = [d.p for d in rows if d.p is not None]
  p_values = iter(holm(known) if correct == 'holm' else known)
  return [None if d.p is None else next(p_values) for d in rows]


def best_of(
  values: Mapping[str, Sequence[float | None]],
  better: Callable[[float], float],
  correct: str = 'none',
) -> dict[str, str]:
  """Which method is the best of a column, and which do not differ from it.

  Args:
    values: label of each method -> [N] its figure of each seed, None where there is
      none; one that could not run has fewer.
    better: a number that is the larger the better a figure is.
    correct: of `CORRECTIONS`.

  Returns:
    Label -> 'best' for the best mean, the first of equal ones, or 'equal' where the
    paired t-test has p >= 0.05, or no p since all seeds differ by the same; other
    methods are left out. Empty unless the best one has been compared with another over
    two seeds.
  """
  known = {m: [v for v in each if v is not None] for m, each in values.items()}
  means = {m: better(float(np.mean(each))) for m, each in known.items() if each}
  if max(means.values(), default=-np.inf) == -np.inf:  # None is a number.
    return {}
  best = max(means, key=lambda label: means[label])
  tests = {}
  for label in means:
    by_seed = zip(values[label], values[best], strict=False)
    pairs = [(a, b) for a, b in by_seed if a is not None and b is not None]
    if label != best and len(pairs) > 1:
      tests[label] = paired_difference(*zip(*pairs, strict=True))
  p_values = dict(zip(tests, _corrected(list(tests.values()), correct), strict=True))
  equal = {m: 'equal' for m, p in p_values.items() if p is None or p >= 1 - _LEVEL}
  return {best: 'best'} | equal if tests else {}


def best_rule(correct: str, oracle: bool) -> str:
  """Meaning of the marks of `best_of`, behind the mark of the best.

  `oracle` says whether there is one, which takes no part.
  """
  note = '; the oracle is left out' * oracle
  return (
    'best mean of a column. °: not different from it (paired t-test over seeds, '
    f'p ≥ {1 - _LEVEL:.2g}, {CORRECTIONS[correct]}){note}.'
  )


def student_quantile(count: float) -> float:
  """Number of values in the 95 % interval of a mean: degrees of freedom plus 1."""
  from scipy import special  # Slow to import.

  return float(special.stdtrit(count - 1, (1 + _LEVEL) / 2))


# Label of each method -> its summary of each seed, None for one that diverged; a method
# that could not run has fewer.
Summaries = dict[str, list[dict[str, Any] | None]]

# Kinds of figures, and how tables call them.
KINDS = {'deployed': 'deployed', 'finetuned': 'fine-tuned'}

# Rounds that figures are of, see `curves.REPORTS` -> what is said of them.
OF_REPORTS = {
  'last': '',
  'best': ', best round of each run,',
  'mean10': ', mean of the last ten evaluations,',
}

# What one method's figures are minus those of the reference: its 'method', the 'pairs',
# 'mean', 'low' and 'high', of accuracies in percentage points, and 'p', None where they
# are unknown.
Row = dict[str, Any]


# The label of the 'reference', None without finished runs, the 'task', whom and what
# figures are 'of' (`clients_and_examples`), for each of `KINDS` the rows of the other
# methods, and the 'report', if any; see `OF_REPORTS`.
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
    by_seed = zip(runs, summaries[reference], strict=False)
    pairs = [
      (figure(mine, kind), figure(other, kind))
      for mine, other in by_seed
      if mine is not None and other is not None
    ]
    row: Row = dict.fromkeys(Difference._fields)
    if pairs:
      row = paired_difference(*zip(*pairs, strict=True))._asdict()
    rows.append({'method': label, 'pairs': len(pairs), **row})
  return rows


def check_reference(reference: str, labels: Sequence[str]) -> None:
  """Raises `UserError` unless the reference is empty or the label of a method."""
  known = not reference or reference in labels
  check(
    known, f'reference: unknown value {reference!r:.30}; expected {", ".join(labels)}'
  )


def differences(
  summaries: Summaries, reference: str = '', correct: str = 'none'
) -> Differences:
  """Each method minus a reference method, for the deployed and the fine-tuned models.

  `reference` is the label of one; by default that with the best deployed figure.
  `correct`, of `CORRECTIONS`, says how p values are corrected; intervals are not.
  """
  chosen = reference or best(summaries)
  of_kinds: Differences = {
    'reference': chosen,
    'task': task_of(summaries.values()).name,
  }
  of_kinds |= {'correct': correct, 'of': clients_and_examples(summaries)}
  for kind in KINDS:
    rows = against(summaries, chosen, kind) if chosen else []
    of_kinds[kind] = [row for row in rows if row['pairs']]
    each = [Difference(*(row[n] for n in Difference._fields)) for row in of_kinds[kind]]
    for row, p in zip(of_kinds[kind], _corrected(each, correct), strict=True):
      row['p'] = p
  return of_kinds


def clients_and_examples(summaries: Summaries) -> str:
  """', honest clients, validation examples' where figures are of these; else ''.

  Of honest clients where others are bad, of validation examples where they were held
  out of the training split.
  """
  done = [s for runs in summaries.values() for s in runs if s]
  said = ', honest clients' * any(s.get('honest') for s in done)
  return said + examples([bool(s.get('evaluated_on')) for s in done])


def examples(held_out: Sequence[bool]) -> str:
  """', validation examples' where some runs, or all, are of these; else ''."""
  of_some = ' of some methods' * (not all(held_out))
  return f', validation examples{of_some}' * any(held_out)


def tables(of_kinds: Differences, kinds: Sequence[str] = tuple(KINDS)) -> list[Table]:
  """A table for each of these `KINDS` that has something to compare.

  Differences that favor a method, with p below 0.05, are bold.
  """
  of, shown = tasks.of(of_kinds).primary, []
  for kind in kinds:
    rows = []
    for row in of_kinds[kind]:
      favors = row['p'] is not None and row['p'] < 1 - _LEVEL
      figures = cell(row['mean'], best=favors and of.better(row['mean']) > 0)
      ends = (cell(row[name]) for name in ('low', 'high', 'p'))
      rows.append((row['method'], figures, *ends, row['pairs']))
    if not rows:
      continue
    form, interval = f'+.{of.digits + 1}f', '95 % interval'
    columns = [
      Column('method', 'method'), Column('difference', 'difference', form),
      Column('low', 'from', form, interval), Column('high', 'to', form, interval),
      Column('p', 'p', '.2g'), Column('seeds', 'seeds', 'd'),
    ]  # fmt: skip
    unit = ', in percentage points' if of.percent else ''
    caption = (
      f'{KINDS[kind].capitalize()} micro {of.label}{of_kinds["of"]}'
      f'{OF_REPORTS[of_kinds.get("report", "last")]} minus that of '
      f'{of_kinds["reference"]}{unit}: mean of the differences of each seed, 95 % '
      'interval (Student t; not adjusted for the number of methods; of repetitions '
      'with the same examples, not of other data) and p of the paired t-test, '
      f'{CORRECTIONS[of_kinds["correct"]]}.'
    )
    best = f'in favor of the method, p < {1 - _LEVEL:.2g}.'
    best = best if any(row[1].best for row in rows) else ''
    label = f'{kind}-minus-{of_kinds["reference"]}'
    shown.append(Table(columns, rows, caption, best=best, label=label))
  return shown
