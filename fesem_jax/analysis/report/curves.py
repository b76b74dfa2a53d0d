"""Curves over rounds: every number of the records, by run."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fesem_jax.analysis.report.runs import ReportedRun
from fesem_jax.evaluation.paired import examples
from fesem_jax.run.results.records import Record
from fesem_jax.tasks import Task

# Numbers of all curves together, and of one curve.
_MOST, _LEAST_EACH, _MOST_EACH = 150_000, 40, 400

# What a reader is shown of records, after the figures of the task.
_TITLES = {
  'train_loss': 'Training loss',
  'objective': 'Mean squared distance of local models to their centers (Eq. 6)',
  'objective_local_step': 'The same distance after the local step',
  'objective_e_step': 'The same distance after the E-step, the choice of centers',
  'moved': 'Clients that moved to another cluster',
  'ari': 'Agreement with the true clusters (adjusted Rand index)',
  'nmi': 'Agreement with the true clusters (normalized mutual information)',
  'ami': 'Agreement with the true clusters (adjusted mutual information)',
  'trained': 'Clients that trained',
  'failed': 'Clients that failed',
  'finetuning_failed': 'Clients whose fine-tuning failed',
  'seconds': 'Seconds of the round',
  'bytes_up': 'Bytes sent up',
  'bytes_down': 'Bytes sent down',
}
_AGREEMENTS = ('ari', 'nmi', 'ami')
# What may stand below a curve in place of rounds: entries of records, and their unit.
_AXES: dict[str, tuple[tuple[str, ...], float]] = {
  'seconds': (('seconds',), 1.0),
  'gigabytes': (
    ('bytes_up', 'bytes_down', 'start_bytes_up', 'start_bytes_down'),
    1e9,
  ),
  'simulated seconds': (('simulated_seconds',), 1.0),
}
_KINDS = {'deployed': 'Deployed', 'finetuned': 'Fine-tuned'}
_HONEST = 'honest/'  # Keys of figures without bad clients begin with it.


def curves(runs: Sequence[ReportedRun], task: Task) -> dict[str, Any]:
  """The curves of all runs, which are of one task.

  Returns `figures`, a list of the `key`, `title` and `percent` of each; `axes`, what
  there is to draw them over; and for each run in `runs` its `rounds`, `axes` (name ->
  [R] numbers) and `series` (key -> [places, values], places None where all rounds have
  a value). Values that are not finite are None, and curves have gaps there.
  """
  held = [_by_key(run.history) for run in runs]
  # Tables are of the honest clients, and so the first figures if all runs have them.
  bad = [any(key.startswith(_HONEST) for key in each) for each in held if each]
  first = _HONEST if bad and all(bad) else ''
  every = {key for each in held for key in each}
  keys = sorted(every, key=lambda key: _order(key, task, first))
  each = _MOST // max(1, len(runs) * len(keys))
  most = min(max(each, _LEAST_EACH), _MOST_EACH)
  axes, shown = [_axes(run.history) for run in runs], _shown(runs, held, most)
  held_out = [run.config.get('evaluate_on') == 'validation' for run in runs]
  return {
    'figures': [_figure(key, task, any(bad), examples(held_out)) for key in keys],
    'axes': [name for name in _AXES if any(name in a for a in axes)],
    'runs': [
      {
        'rounds': [record['round'] for record in run.history],
        'axes': of_run,
        'series': {
          key: _at(shown[run.label, key], *pairs, run) for key, pairs in values.items()
        },
      }
      for run, values, of_run in zip(runs, held, axes, strict=True)
    ],
  }


def _by_key(history: Sequence[Record]) -> dict[str, tuple[list[int], list[float]]]:
  """Places and values of every number of the records that is finite in one of them."""
  numbers: dict[str, tuple[list[int], list[float]]] = {}
  for place, record in enumerate(history):
    for key, value in _numbers('', record):
      places, values = numbers.setdefault(key, ([], []))
      places.append(place)
      values.append(value)
  return {k: held for k, held in numbers.items() if np.isfinite(held[1]).any()}


def _numbers(prefix: str, record: Record) -> Iterator[tuple[str, float]]:
  for name, value in record.items():
    key = f'{prefix}/{name}' if prefix else name
    if isinstance(value, dict):
      yield from _numbers(key, value)
    elif isinstance(value, int | float) and key != 'round':
      yield key, value


def _order(key: str, task: Task, first: str = '') -> tuple[Any, ...]:
  """Figures of the task first, then what is known, then what others added.

  Of the figures, those that begin with `first`, '' or `_HONEST`, come first.
  """
  of = _HONEST if key.startswith(_HONEST) else ''
  name = key.removeprefix(of)
  kind, _, column = name.partition('/')
  if kind in _KINDS and column in task.columns:
    return 0, of != first, task.columns.index(column), list(_KINDS).index(kind)
  if name in _TITLES:
    return 1, list(_TITLES).index(name), of != first
  return 2, key


def _figure(
  key: str, task: Task, some_are_bad: bool, examples: str = ''
) -> dict[str, Any]:
  name = key.removeprefix(_HONEST)
  *above, column = name.split('/')
  of = ', all clients' * some_are_bad if name == key else ', honest clients'
  if above and above[-1] in _KINDS and column in task.columns:
    figure = task.figure(column)
    mean, _, _ = column.partition('_')
    title = f'{_KINDS[above[-1]]} {mean} {figure.label}{of}{examples}'
    return {'key': key, 'title': title, 'percent': figure.percent}
  title = _TITLES.get(name) or name.replace('/', ', ').replace('_', ' ').capitalize()
  if name != key or name in _AGREEMENTS:
    title += of
  return {'key': key, 'title': title, 'percent': False}


def _axes(history: Sequence[Record]) -> dict[str, list[float | int | None]]:
  """Axes of a curve in place of rounds: sums over the rounds so far."""
  axes = {}
  for axis, (names, unit) in _AXES.items():
    known = [dict(_numbers('', record)) for record in history]
    values = [sum(numbers.get(name, 0) for name in names) for numbers in known]
    if any(values):
      axes[axis] = rounded([x / unit for x in itertools.accumulate(values)], 5)
  return axes


def _shown(
  runs: Sequence[ReportedRun],
  held: Sequence[dict[str, tuple[list[int], list[float]]]],
  most: int,
) -> dict[tuple[str, str], set[int]]:
  """(Label, key) -> rounds in which curves have points.

  They are the same for all its seeds, as means are of the seeds with a point: of many
  rounds, some at even distances and the last one of each seed.
  """
  known: dict[tuple[str, str], list[list[int]]] = {}
  for run, values in zip(runs, held, strict=True):
    for key, (places, _) in values.items():
      rounds = [run.history[place]['round'] for place in places]
      known.setdefault((run.label, key), []).append(rounds)
  shown = {}
  for of, seeds in known.items():
    every = sorted(set().union(*seeds))
    if max(map(len, seeds)) > most:
      even = np.linspace(0, len(every) - 1, most).astype(int).tolist()
      every = [every[i] for i in even] + [rounds[-1] for rounds in seeds]
    shown[of] = set(every)
  return shown


def _at(
  shown: set[int], places: list[int], values: list[float], run: ReportedRun
) -> list[Any]:
  """Places and values of a curve in the rounds that are shown."""
  kept = [i for i, p in enumerate(places) if run.history[p]['round'] in shown]
  places, values = [places[i] for i in kept], [values[i] for i in kept]
  is_every = len(places) == len(run.history)
  return [None if is_every else places, rounded(values, 5)]


def rounded(values: Iterable[float], digits: int = 4) -> list[float | int | None]:
  """Numbers of so many digits."""
  return [_rounded(float(value), digits) for value in values]


def _rounded(value: float, digits: int) -> float | int | None:
  if not math.isfinite(value):
    return None
  short = float(f'{value:.{digits}g}')
  return int(short) if short == int(short) and abs(short) < 1e15 else short
