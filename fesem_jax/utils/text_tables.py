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
from fesem_jax.utils.display import printable

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

# What LaTeX needs in the preamble of a document.
PREAMBLE = r'\usepackage{booktabs}'
_LATEX = {c: '\\' + c for c in '{}$&#%_'} | {
  '\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}',
  '<': r'\textless{}', '>': r'\textgreater{}', '|': r'\textbar{}',
  '±': r'$\pm$', '≥': r'$\ge$', '°': r'$^\circ$', '•': '',
}  # fmt: skip
_MARKDOWN = {c: '\\' + c for c in '\\`*[]<>|&~'}
_MOST_COLUMNS = 7  # Side by side.
_LENGTH = 1000  # Characters of a text, at most.


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """A table of numbers and their texts.

  Attributes:
    cells: texts; columns are (group, head), rows are named by the index.
    numbers: what CSV has, rows as those of `cells`.
    bold: bool, which cells are the best.
    notes: at most two lines below it.
    caption: of LaTeX; '' takes the first note.
  """

  cells: 'DataFrame'
  numbers: 'DataFrame'
  bold: 'DataFrame | None' = None
  notes: Sequence[str] = ()
  caption: str = ''

  @classmethod
  def from_texts(
    cls, index: Sequence[object], columns: Mapping[str, Sequence[str]], note: str
  ) -> 'Table':
    """A table of texts, head -> cells; `index` names the rows."""
    import pandas

    cells = pandas.DataFrame(columns, index=pandas.Index(map(str, index)))
    heads = pandas.MultiIndex.from_product([[''], cells.columns])
    return cls(cells.set_axis(heads, axis=1), cells, notes=[note])

  def _panels(self) -> Iterator['DataFrame']:
    """The cells, some groups of columns at a time."""
    selected: list[tuple[str, str]] = []
    for group in dict.fromkeys(self.cells.columns.get_level_values(0)):
      columns = [column for column in self.cells.columns if column[0] == group]
      if selected and len(selected) + len(columns) > _MOST_COLUMNS:
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
      shown = self._marked(panel.map(_plain), '', '•').apply(_with_room_for_marks)
      panels.append(shown.rename(index=_plain).rename_axis(None).to_string())
    return '\n'.join(['\n\n'.join(panels), *map(_plain, self.notes)])

  def _repr_html_(self) -> str:
    return self.to_html() + ''.join(f'<p>{escape(note)}</p>' for note in self.notes)

  def to_html(self) -> str:
    """The table as HTML, without its notes."""
    shown = self._marked(self.cells.map(escape), '<b>', '</b>').rename_axis(None)
    shown = shown.rename(index=lambda name: escape(str(name)), columns=escape)
    return shown.to_html(escape=False, border=0)

  def to_markdown(self) -> str:
    """The table and its notes as Markdown."""
    parts = []
    for panel in self._panels():
      cells = self._marked(panel.map(_markdown), '**', '**').rename(index=_markdown)
      heads = [self.cells.index.name or '', *(' '.join(c).strip() for c in panel)]
      parts.append('\n'.join(markdown([*map(_markdown, heads)], cells.itertuples())))
    return '\n\n'.join([*parts, *map(_markdown, self.notes)]) + '\n'

  def to_latex(self) -> str:
    """The first columns as a table of booktabs; `write` has the others too."""
    return next(self._latex_tables())

  def _latex_tables(self) -> Iterator[str]:
    """LaTeX of some columns at a time; notes are comments."""
    comments = [f'% {text}' for text in [PREAMBLE, *self.notes]]
    for i, panel in enumerate(self._panels()):
      cells = self._marked(panel.map(_latex), r'\textbf{', '}').rename(index=_latex)
      groups = [group for group, _ in panel]
      wide = r'\multicolumn{%d}{c}{%s}'
      heads = [wide % (groups.count(g), _latex(g)) for g in dict.fromkeys(groups)]
      rows = [['', *heads], ['', *(_latex(head) for _, head in panel)]]
      texts = [' & '.join(row) + r' \\' for row in (*rows, *cells.itertuples())]
      caption = self.caption or next(iter(self.notes), '')
      if i:
        caption = ', '.join(filter(None, dict.fromkeys(groups)))
      label = 'tab:methods' + f'_{i + 1}' * bool(i)
      lines = [*comments, r'\begin{table*}[t]', rf'\caption{{{_latex(caption)}}}']
      lines += [rf'\label{{{label}}}', r'\centering\footnotesize']
      lines += [rf'\begin{{tabular}}{{l{"r" * len(groups)}}}', r'\toprule', *texts[:2]]
      lines += [r'\midrule', *texts[2:], r'\bottomrule', r'\end{tabular}']
      yield '\n'.join([*lines, r'\end{table*}']) + '\n'

  def to_csv(self) -> str:
    """The numbers as CSV, with all digits."""
    return self.numbers.to_csv(lineterminator='\n')

  def write(self, folder: pathlib.Path, name: str = 'table') -> None:
    """Writes NAME.md, .csv, .json and .tex (more columns: NAME_2.tex) to a folder."""
    numbers = self.numbers.reset_index().astype(object)
    rows = numbers.where(numbers.notna(), None).to_dict('records')
    texts = {'md': self.to_markdown(), 'csv': self.to_csv()}
    texts['json'] = json.dumps(rows, indent=1) + '\n'
    for suffix, text in texts.items():
      write_atomically(folder / f'{name}.{suffix}', text)
    for i, text in enumerate(self._latex_tables()):
      write_atomically(folder / f'{name}{f"_{i + 1}" * bool(i)}.tex', text)


def spread(mean: float, std: float, form: str) -> str:
  """'86.6 ± 0.9'; without a deviation where it is NaN, '' for a mean that is NaN."""
  texts = [format(x, form) for x in (mean, std) if not math.isnan(x)]
  return '' if math.isnan(mean) else ' ± '.join(texts)


def _with_room_for_marks(column: Sequence[str]) -> list[str]:
  """Texts of a column, aligned where some of them end in marks."""
  marks = [len(text) - len(text.rstrip('°•')) for text in column]
  return [t + ' ' * (max(marks) - n) for t, n in zip(column, marks, strict=True)]


def _plain(value: object) -> str:
  return printable(value, _LENGTH)


def _markdown(value: object) -> str:
  """A text without markup or HTML."""
  return ''.join(_MARKDOWN.get(c, c) for c in _plain(value))


def _latex(value: object) -> str:
  """A text without commands of LaTeX."""
  text = ''.join(_LATEX.get(c, c) for c in _plain(value)).replace('--', '-{}-')
  return re.sub(r'(?<!\w)-(?=\d)', '$-$', text)  # A minus, and no hyphen.


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
  """The lines of a Markdown table; the cells must be escaped."""
  lines = [f'| {" | ".join(cells)} |' for cells in (head, *rows)]
  return [lines[0], '|---' * len(head) + '|', *lines[1:]]
