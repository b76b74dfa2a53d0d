"""Recipes of published tables: papers/NAME.toml.

A recipe has a `title`, a `reference`, its `setting` and where its `facts` come from,
`flags` of `experiments.run` for all of its cells, and `cells`, each with a `name`, what
its `row` is called, `flags` of its own, and what is `published`.
"""

import pathlib
import tomllib
from typing import Any, NamedTuple, get_origin

from fesem_jax.utils.errors import UserError, argument

FOLDER = pathlib.Path(__file__).parent / 'papers'

# What a cell compares -> digits and unit that tables show.
MEASURES = {
  'deployed': (2, '%'),
  'finetuned': (2, '%'),
  'rounds': (0, 'rounds'),
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
  seeds: int = 1  # number of seeds, which are 0, 1, ...
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
      known = ', '.join(cell.name for cell in self.cells)
      raise UserError(f'{argument("cells", name)} is none of {self.name}: {known}.')
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
  """The recipe of a name, or of a file NAME.toml.

  Raises `UserError` if there is none, or it is damaged.
  """
  path = pathlib.Path(name) if name.endswith('.toml') else FOLDER / f'{name}.toml'
  try:
    content = tomllib.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError as e:
    raise UserError(
      f'{argument("paper", name)} is neither a file NAME.toml nor one of '
      f'{", ".join(names())}.'
    ) from e
  except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
    raise UserError(f'{path} is no TOML: {e}.') from e
  return _recipe(path, content)


def _recipe(path: pathlib.Path, content: dict[str, Any]) -> Recipe:
  """A recipe from its file; a field of the recipe is the default of its cells."""
  cells, common = content.pop('cells', []), content.pop('flags', [])
  if not isinstance(common, list):
    raise UserError(f'{path}: flags must be a list.')
  shared = {
    k: content.pop(k) for k in list(content) if k in Cell._fields and k != 'why'
  }
  filled: list[Cell] = []
  for fields in cells:
    cell = _made(path, Cell, shared | fields, 'a cell')
    filled.append(cell._replace(flags=(*common, *cell.flags)))
  for cell in filled:
    _check(path, cell, {c.name for c in filled})
  if len({cell.name for cell in filled}) < len(filled) or not filled:
    raise UserError(
      f'{path}: each cell needs a name of its own, and there must be one.'
    )
  own = {'name': path.stem, 'cells': filled, 'why': ''}
  return _made(path, Recipe, own | content, 'the recipe')


def _made(path: pathlib.Path, kind: Any, fields: dict[str, Any], what: str) -> Any:
  """A cell or a recipe; raises `UserError` on fields that do not make one."""
  if unknown := set(fields) - set(kind._fields):
    raise UserError(f'{path}: {what} has {min(unknown)}, which is unknown.')
  for name, of_type in kind.__annotations__.items():
    if name not in fields and name not in kind._field_defaults:
      raise UserError(f'{path}: {what} lacks {name}.')
    if of_type is str and not isinstance(fields.get(name, ''), str):
      raise UserError(f'{path}: {name} must be a string.')
    if get_origin(of_type) is tuple and not isinstance(fields.get(name, []), list):
      raise UserError(f'{path}: {name} must be a list.')
  values = {n: tuple(x) if isinstance(x, list) else x for n, x in fields.items()}
  return kind(**values)


def _check(path: pathlib.Path, cell: Cell, known: set[str]) -> None:
  """Raises `UserError` on a cell that makes no sense."""
  if cell.measure not in MEASURES or cell.report not in REPORTS:
    raise UserError(
      f'{path}: {cell.name} needs a measure of {", ".join(MEASURES)} and a report of '
      f'{", ".join(REPORTS)}.'
    )
  if cell.runs_of and cell.runs_of not in known:
    raise UserError(
      f'{path}: {cell.name} has runs_of={cell.runs_of}, which is no cell.'
    )
  if cell.seeds < 1:
    raise UserError(f'{path}: {cell.name} needs at least one seed.')
