"""A table for terminals, notebooks, and as Markdown, HTML, LaTeX and CSV."""

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.display import (
  in_latex,
  in_markdown,
  printable,
)

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

# What LaTeX needs in the preamble of a document.
PREAMBLE = r'\usepackage{booktabs}'
_SYMBOLS = {'±': r'$\pm$', '≥': r'$\ge$', '°': r'$^\circ$', '•': ''}
_MOST_COLUMNS, _MOST_OF_LATEX = 8, 7  # Beside each other.
_CELL, _NOTE = 255, 1000  # Characters, at most.


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """A table of numbers and their texts.

  Attributes:
    cells: texts; columns are (group, head), rows are named by the index.
    numbers: what CSV has, rows as those of `cells`.
    bold: bool, which cells are the best.
    notes: at most two lines below it.
    label: of LaTeX, behind 'tab:'.
    caption: of LaTeX; '' takes the first note.
  """

  cells: 'DataFrame'
  numbers: 'DataFrame'
  bold: 'DataFrame | None' = None
  notes: Sequence[str] = ()
  label: str = 'methods'
  caption: str = ''

  @classmethod
  def of_texts(
    cls, index: Sequence[object], columns: Mapping[str, Sequence[str]], note: str = ''
  ) -> 'Table':
    """A table of texts, head -> cells; `index` names the rows."""
    import pandas

    cells = pandas.DataFrame(columns, index=pandas.Index(map(str, index)))
    heads = pandas.MultiIndex.from_product([[''], cells.columns])
    notes = [note] if note else []
    return cls(cells.set_axis(heads, axis=1), cells, notes=notes)

  def _panels(self, most: int = _MOST_COLUMNS) -> Iterator['DataFrame']:
    """The cells, some groups of columns at a time."""
    selected: list[tuple[str, str]] = []
    for group in dict.fromkeys(self.cells.columns.get_level_values(0)):
      columns = [column for column in self.cells.columns if column[0] == group]
      if selected and len(selected) + len(columns) > most:
        yield self.cells[selected]
        selected = []
      selected += columns
    yield self.cells[selected]

  def _marked(self, cells: 'DataFrame', before: str, after: str) -> 'DataFrame':
    """Cells with marks around the best ones."""
    if self.bold is None:
      return cells
    return cells.mask(self.bold[cells.columns], before + cells + after)

  def __str__(self) -> str:
    panels = []
    for panel in self._panels():
      shown = self._marked(panel.map(lambda text: printable(text, _CELL)), '', '•')
      shown = shown.apply(_with_room_for_marks).rename_axis(None)
      shown.index = shown.index.map(lambda name: printable(name, _CELL))
      panels.append(shown.to_string())
    notes = [printable(note, _NOTE) for note in self.notes]
    return '\n'.join(['\n\n'.join(panels), *notes])

  def _repr_html_(self) -> str:
    return self.to_html() + ''.join(f'<p>{escape(note)}</p>' for note in self.notes)

  def to_html(self) -> str:
    """The table as HTML, without its notes."""
    shown = self._marked(self.cells.map(escape), '<b>', '</b>').rename_axis(None)
    shown = shown.rename(index=lambda name: escape(str(name)))
    shown.columns = shown.columns.map(
      lambda column: tuple(escape(text) for text in column)
    )
    return shown.to_html(escape=False, border=0)

  def to_markdown(self) -> str:
    """The table and its notes as Markdown."""
    parts = []
    for panel in self._panels():
      cells = self._marked(panel.map(lambda x: in_markdown(x, _CELL)), '**', '**')
      heads = [self.cells.index.name or '', *(' '.join(c).strip() for c in panel)]
      names = [in_markdown(name, _CELL) for name in cells.index]
      rows = zip(names, *(cells[column] for column in cells), strict=True)
      parts.append('\n'.join(markdown(list(map(in_markdown, heads)), rows)))
    parts += [in_markdown(note, _NOTE) for note in self.notes]
    return '\n\n'.join(parts) + '\n'

  def to_latex(self) -> str:
    """The first columns as a LaTeX table of booktabs; `write` has the others too."""
    return self._latex_tables()[0]

  def _latex_tables(self) -> list[str]:
    """LaTeX of some columns at a time."""
    first, *others = list(self.notes) or ['']
    texts = []
    for i, panel in enumerate(self._panels(_MOST_OF_LATEX)):
      groups = ', '.join(dict.fromkeys(group for group, _ in panel if group))
      caption = self.caption or (groups if i else first)
      label = self.label + f'_{i + 1}' * bool(i)
      lines = [r'\begin{table*}[t]', rf'\caption{{{_latex(caption)}}}']
      lines += [rf'\label{{tab:{label}}}', r'\centering\footnotesize']
      lines += [self._tabular(panel), r'\end{table*}']
      comments = [PREAMBLE, *([first, *others] if i else others)]
      texts.append('\n'.join([*(f'% {text}' for text in comments), *lines]) + '\n')
    return texts

  def _tabular(self, panel: 'DataFrame') -> str:
    """Some columns as LaTeX."""
    cells = self._marked(panel.map(_latex), r'\textbf{', '}')
    groups = [group for group, _ in panel]
    heads = [
      rf'\multicolumn{{{groups.count(g)}}}{{c}}{{{_latex(g)}}}'
      for g in dict.fromkeys(groups)
    ]
    names = [_latex(str(name)) for name in cells.index]
    rows = zip(names, *(cells[column] for column in cells), strict=True)
    lines = [['', *heads], [_latex(cells.index.name or '')]]
    lines[1] += [_latex(head) for _, head in panel]
    text = [' & '.join(line) + r' \\' for line in [*lines, *rows]]
    rules = [r'\toprule', *text[:2], r'\midrule', *text[2:], r'\bottomrule']
    form = 'l' + 'r' * panel.shape[1]
    return '\n'.join([rf'\begin{{tabular}}{{{form}}}', *rules, r'\end{tabular}'])

  def to_csv(self) -> str:
    """The numbers as CSV, with all digits."""
    return self.numbers.to_csv(lineterminator='\n')

  def write(self, folder: pathlib.Path, name: str = 'table') -> None:
    """Writes NAME.md, .csv, .tex and .json into an existing folder.

    Columns beyond the first ones have LaTeX files of their own, NAME_2.tex and so on.
    """
    first, *others = self._latex_tables()
    numbers = self.numbers.reset_index().astype(object)
    rows = numbers.where(numbers.notna(), None).to_dict('records')
    for suffix, text in {
      'md': self.to_markdown(),
      'csv': self.to_csv(),
      'tex': first,
      'json': json.dumps(rows, indent=1) + '\n',
    }.items():
      write_atomically(folder / f'{name}.{suffix}', text)
    for number, text in enumerate(others, 2):
      write_atomically(folder / f'{name}_{number}.tex', text)


def spread(mean: float, std: float, form: str) -> str:
  """'86.6 ± 0.9'; without a deviation where it is NaN, '' for a mean that is NaN."""
  texts = [format(x, form) for x in (mean, std) if not math.isnan(x)]
  return '' if math.isnan(mean) else ' ± '.join(texts)


def number(value: float, form: str) -> str:
  """A number as text, '' for NaN."""
  return '' if math.isnan(value) else format(value, form)


def _with_room_for_marks(column: Sequence[str]) -> list[str]:
  """Texts of a column, aligned where some of them end in marks."""
  marks = [len(text) - len(text.rstrip('°•')) for text in column]
  return [t + ' ' * (max(marks) - n) for t, n in zip(column, marks, strict=True)]


def _latex(text: object) -> str:
  """A text without commands of LaTeX."""
  text = in_latex(text, 4000).replace('--', '-{}-')
  text = re.sub(r'(?<!\w)-(?=\d)', '$-$', text)  # A minus, and no hyphen.
  return ''.join(_SYMBOLS.get(c, c) for c in text)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
  """The lines of a Markdown table; the cells must be escaped."""
  lines = [f'| {" | ".join(cells)} |' for cells in (head, *rows)]
  return [lines[0], '|---' * len(head) + '|', *lines[1:]]


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
  """Lines of cells below their head, columns as wide as their widest cell."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      cell.ljust(width) if i in left else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]
