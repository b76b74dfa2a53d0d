"""The ledger of reproductions: one JSON file a cell, and what follows from it."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.evaluation.paired import student_quantile
from fesem_jax.utils.atomic_files import write_atomically

from . import recipes
from .recipes import Cell, Recipe

# What a cell's file holds; see `entry`.
Entry = dict[str, Any]

# Inside the interval of `half_interval`, and outside of it.
VERDICTS = ('no difference detected at this precision', 'different')
NO_VERDICT = ('published spread unknown', 'target not reached')

# At most so many points of a curve.
_POINTS = 60


def path(folder: pathlib.Path, recipe: str, cell: str) -> pathlib.Path:
  """The file of a cell."""
  return folder / recipe / f'{cell}.json'


def read(folder: pathlib.Path, recipe: str, cell: str) -> Entry | None:
  """The entry of a cell; None if it was not run."""
  file = path(folder, recipe, cell)
  if not file.is_file():
    return None
  entry: Entry = json.loads(file.read_text(encoding='utf-8'))
  return entry


def write(folder: pathlib.Path, recipe: str, cell: str, entry: Entry) -> None:
  """Writes the entry of a cell, as a whole or not at all."""
  file = path(folder, recipe, cell)
  file.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(file, json.dumps(entry, indent=1) + '\n')


def value(cell: Cell, workdir: pathlib.Path) -> float | None:
  """Figure of a finished run that a cell compares; None if a target was not reached."""
  summary = json.loads((workdir / 'summary.json').read_text())
  if cell.measure == 'rounds':
    reached = summary['rounds_to_target'][0]['deployed']
    return None if reached is None else float(reached)
  if cell.measure == 'seconds':
    timing = summary['timing']
    return float(timing['total_seconds'])
  values = [value for _, value in curve(cell, workdir)]
  if cell.report == 'best':
    return max(values)
  return values[0 if cell.report == 'first' else -1]


def curve(cell: Cell, workdir: pathlib.Path) -> list[tuple[int, float]]:
  """(round, what the cell measures) of each evaluated round of a run."""
  points = []
  for line in (workdir / 'metrics.jsonl').read_text().splitlines():
    record = json.loads(line)
    if cell.measure == 'ari':
      if record['round'] and 'ari' in record:
        points.append((record['round'], float(record['ari'])))
    elif 'deployed' in record:
      kind = cell.measure if cell.measure in record else 'deployed'
      points.append((record['round'], 100 * record[kind]['micro_accuracy']))
  return points


def accuracy(workdir: pathlib.Path) -> float:
  """Deployed accuracy of a finished run, in percent."""
  summary = json.loads((workdir / 'summary.json').read_text())
  return 100 * float(summary['deployed']['micro_accuracy'])


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
  """A curve of at most 60 points, the last one among them, for the ledger."""
  if len(points) <= _POINTS:
    return [(r, round(v, 4)) for r, v in points]
  kept = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
  return [(points[i][0], round(points[i][1], 4)) for i in kept]


def mean(values: Sequence[float | None]) -> float | None:
  """The mean over seeds; None if a seed has no value."""
  known = [v for v in values if v is not None]
  return float(np.mean(known)) if len(known) == len(values) and known else None


def half_interval(cell: Cell, values: Sequence[float]) -> float | None:
  """Half of the 95 % interval of the difference to what is published.

  Welch's interval of the difference of two means, ours and the published one. With one
  seed of ours, Student's with the published deviation, which stands for ours. Half the
  width of an "about" value is added. None unless both the published deviation and the
  number of its seeds are known.
  """
  if cell.deviation is None or cell.published_seeds < 2:
    return None
  n, m = 1 if cell.averaged else len(values), cell.published_seeds
  published = cell.deviation**2
  ours = float(np.var(values, ddof=1)) if n > 1 else published
  variance, freedom = ours / n + published / m, m - 1.0
  if n > 1 and variance:
    of_ours, of_theirs = (ours / n) ** 2 / (n - 1), (published / m) ** 2 / (m - 1)
    freedom = variance**2 / (of_ours + of_theirs)
  return student_quantile(freedom + 1) * math.sqrt(variance) + cell.rounding


def half_published(cell: Cell) -> float | None:
  """Half of the 95 % interval of a published mean, or of its rounding; None if unknown.

  Student's, of the published deviation and number of seeds.
  """
  if cell.deviation is None or cell.published_seeds < 2:
    return cell.rounding or None
  n = cell.published_seeds
  return student_quantile(n) * cell.deviation / math.sqrt(n) + cell.rounding


def half_here(values: Sequence[float | None]) -> float | None:
  """Half of the 95 % interval of the mean over seeds; None with one seed."""
  if len(values) < 2 or mean(values) is None:
    return None
  n = len(values)
  deviation = float(np.std(np.array(values, np.float64), ddof=1))
  return student_quantile(n) * deviation / math.sqrt(n)


def verdict(cell: Cell, entry: Entry | None) -> str:
  """The text of a cell: 'not run', or one of `VERDICTS` or of `NO_VERDICT`.

  'no published number' is neither.
  """
  if entry is None:
    return 'not run'
  value_here = mean(entry['values'])
  if cell.published is None:
    return 'no published number'
  if cell.comparable:
    return 'not comparable'
  if value_here is None:
    return 'target not reached'
  half = half_interval(cell, entry['values'])
  if half is None:
    return 'published spread unknown'
  return VERDICTS[abs(value_here - cell.published) > half]


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
  """Lines of cells, columns as wide as their widest cell."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      cell.ljust(width) if i in left else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]


def listed(names: list[str], kept: pathlib.Path) -> str:
  """A table of recipes: cells, of which published and done, and hours."""
  rows = [['paper', 'cells', 'published', 'done', 'hours', 'title']]
  for name in names:
    recipe = recipes.read(name)
    done = sum(read(kept, name, c.name) is not None for c in recipe.cells)
    published = sum(c.published is not None for c in recipe.cells)
    hours = sum(c.hours for c in recipe.cells if not c.runs_of)
    counts = [str(len(recipe.cells)), str(published), str(done), f'{hours:.1f}']
    rows.append([name, *counts, recipe.title])
  return '\n'.join(_aligned(rows, left=(0, 5)))


def cells_of(recipe: Recipe, kept: pathlib.Path) -> str:
  """A table of the cells of a recipe: names for --cells, hours and whether done."""
  rows = [['cell', 'published', 'done', 'hours', 'what']]
  for cell in recipe.cells:
    done = 'yes' if read(kept, recipe.name, cell.name) is not None else 'no'
    published = '-' if cell.published is None else f'{cell.published:g}'
    hours = f'{recipe.source_of(cell).hours:.2g}'
    rows.append([cell.name, published, done, hours, cell.row])
  return '\n'.join([recipe.title, *_aligned(rows, left=(0, 4))])
