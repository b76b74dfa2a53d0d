"""Contents of a paper's pictures: values of its table, curves of its cells."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import ledger
from .recipes import Cell, Recipe


class Line(NamedTuple):
  """A curve of one cell."""

  label: str  # in the legend
  points: Sequence[Sequence[float]]  # (round, value) of each evaluated round
  published: float | None  # value of a dashed line; None for none
  measure: str  # 'deployed', 'finetuned' or 'ari'


class Value(NamedTuple):
  """A cell of a published table."""

  label: str
  measure: str  # one of `MEASURES`
  published: float | None
  half_published: float | None  # half of its interval; None where it is not known
  here: float | None
  half_here: float | None
  comparable: bool = True


def curves(recipe: Recipe, kept: pathlib.Path) -> list[tuple[Cell, ledger.Entry]]:
  """Finished cells with curves; of those of the same runs, one of each axis."""
  by_curve: dict[tuple[str, str], tuple[Cell, ledger.Entry]] = {}
  for cell in recipe.cells:
    of_cell = ledger.read(kept, recipe.name, cell.name)
    if of_cell and len(of_cell['curve']) > 1:
      by_curve.setdefault((cell.runs_of or cell.name, _axis(cell)), (cell, of_cell))
  return list(by_curve.values())


def _axis(cell: Cell) -> str:
  """The measure of the cell's curve: rounds and seconds are those of accuracy."""
  return 'deployed' if cell.measure in ('rounds', 'seconds') else cell.measure


def of(recipe: Recipe, kept: pathlib.Path) -> dict[str, list[Any]]:
  """Name of each picture of a recipe -> the values or lines that it shows."""
  ends: dict[str, list[Any]] = {
    '_table': [
      Value(
        cell.row, cell.measure, cell.published, ledger.half_published(cell),
        ledger.mean(of_cell['values']),
        None if cell.averaged else ledger.half_here(of_cell['values']),
        not cell.comparable,
      )
      for cell in recipe.cells
      if (of_cell := ledger.read(kept, recipe.name, cell.name))
      and (cell.published is not None or len(of_cell['values']) > 1)
    ],
    '': [
      Line(cell.row, of_cell['curve'], _level(cell), _axis(cell))
      for cell, of_cell in curves(recipe, kept)
    ],
  }  # fmt: skip
  return {f'paper_{recipe.name}{end}': shown for end, shown in ends.items() if shown}


def _level(cell: Cell) -> float | None:
  """The published value, where it can be compared and is of the curve's axis."""
  return None if cell.measure != _axis(cell) or cell.comparable else cell.published
