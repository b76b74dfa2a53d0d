"""Recipes of published tables: papers/NAME.toml.

A recipe has a `title`, a `reference`, its `setting` and where its `facts` come from,
`flags` of `experiments.run` for all of its cells, and `cells`, each with a `name`, what
its `row` is called, `flags` of its own, and what is `published`.
"""

import pathlib
import tomllib
from typing import Any, NamedTuple

from fesem_jax.utils.errors import UserError, check

FOLDER = pathlib.Path(__file__).parent / 'papers'

# What a cell compares -> digits and unit that tables show.
MEASURES = {
  'deployed': (2, '%'),
  'finetuned': (2, '%'),
  'rounds': (0, 'rounds'),
  'unlabeled': (2, '%'),
  'ari': (2, 'ARI'),
  'seconds': (0, 's'),
}
REPORTS = ('last', 'best', 'first')


class Cell(NamedTuple):
  """One published figure and how it is computed here."""

  name: str  # of the folder of its runs and of its entry in the ledger
  row: str  # name in tables
  flags: tuple[str, ...] = ()  # of `experiments.run`, after those of the recipe
  runs_of: str = ''  # name of the cell whose runs this one reads; '' if it has its own
  published: float | None = None  # the published value; None if only a curve is
  deviation: float | None = None  # standard deviation of that value over seeds
  # Half of the last published digit, or half the width of an "about" value.
  rounding: float = 0.0
  published_seeds: int = 1  # number of seeds of the published mean; 1 if unknown
  measure: str = 'deployed'  # one of `MEASURES`
  report: str = 'last'  # which evaluation, one of `REPORTS`
  # Learning rates, of which the best counts; empty: the rate of the flags.
  rates: tuple[float, ...] = ()
  seeds: int = 1  # number of seeds, which are 0, 1, ...; "{seed}" in flags is a seed
  averaged: bool = False  # whether the published figure is a mean over these seeds
  hours: float = 0.0  # approximate processor hours of all its runs
  comparable: str = ''  # why the cell cannot be compared; '' if it can
  why: str = ''  # known reasons for a difference


class Recipe(NamedTuple):
  """A published table, or part of one."""

  name: str  # of the file
  title: str  # of the section
  reference: str  # authors, title, venue, table
  setting: str  # what all cells share
  facts: str  # sources of the setting and of the published values
  why: str  # known reasons for differences in several cells
  cells: tuple[Cell, ...]  # in the order of the page
  small_cell: str = ''  # name of the cell that `small` reduces to a run of seconds
  small: tuple[str, ...] = ()  # flags after those of that cell
  small_value: float | None = None  # deployed accuracy of the small run, in percent
  own_data: str = ''  # how to run the published setting where the data are substitutes

  def cell(self, name: str) -> Cell:
    """The cell of a name; raises `UserError` if there is none."""
    named = next((cell for cell in self.cells if cell.name == name), None)
    if named is None:
      raise UserError(f'cells: unknown {name!r} of {self.name}')
    return named

  def source_of(self, cell: Cell) -> Cell:
    """The cell whose runs a cell reads, mostly itself."""
    return self.cell(cell.runs_of) if cell.runs_of else cell

  def small_flags(self) -> list[str]:
    """Flags of the run that `small_value` is of."""
    return [*self.cell(self.small_cell).flags, *self.small, '--seed=0']


def names() -> list[str]:
  """Names of all recipes, in order."""
  return sorted(path.stem for path in FOLDER.glob('*.toml'))


def read(name: str) -> Recipe:
  """The recipe of a name, or of a file NAME.toml; raises `UserError` without one."""
  path = pathlib.Path(name) if name.endswith('.toml') else FOLDER / f'{name}.toml'
  check(path.is_file(), f'paper: unknown {name!r}; expected {", ".join(names())}')
  return _recipe(path, tomllib.loads(path.read_text(encoding='utf-8')))


def _recipe(path: pathlib.Path, content: dict[str, Any]) -> Recipe:
  """A recipe from its file; a field of the recipe is the default of its cells."""
  cells, common = content.pop('cells', []), content.pop('flags', [])
  shared = {
    k: content.pop(k) for k in list(content) if k in Cell._fields and k != 'why'
  }
  filled: list[Cell] = []
  for fields in cells:
    cell = _made(Cell, shared | fields)
    known = cell.measure in MEASURES and cell.report in REPORTS
    check(known, f'{path}: {cell.name} has an unknown measure or report')
    filled.append(cell._replace(flags=(*common, *cell.flags)))
  own = {'name': path.stem, 'cells': filled, 'why': ''}
  return _made(Recipe, own | content)


def _made(kind: Any, fields: dict[str, Any]) -> Any:
  """A cell or a recipe from its fields."""
  values = {n: tuple(x) if isinstance(x, list) else x for n, x in fields.items()}
  return kind(**values)
