"""A table for terminals, notebooks, and as Markdown, HTML, LaTeX and CSV."""

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.display import printable

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

# What LaTeX needs in the preamble of a document.
PREAMBLE = r'\usepackage{booktabs}'
_LATEX = {c: '\\' + c for c in '{}$&#%_'} | {
  '\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}',
  '<': r'\textless{}', '>': r'\textgreater{}', '|': r'\textbar{}',
  '±': r'$\pm$', '≥': r'$\ge$', '°': r'$^\circ$',
}  # fmt: skip
_MARKDOWN = {c: '\\' + c for c in '\\`*[]<>|&~'}
BEST, EQUAL = '•°'  # Marks of the best mean, and of what does not differ from it.
_MOST_COLUMNS = 7  # Side by side.


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """A table of numbers and their texts.

  Attributes:
    cells: texts; columns are (group, head), rows are named by the index. The best ones
      end in `BEST`.
    numbers: what CSV has, rows as those of `cells`.
    notes: at most two lines below it.
    caption: of LaTeX; '' takes the first note.
  """

  cells: 'DataFrame'
  numbers: 'DataFrame'
  notes: Sequence[str] = ()
  caption: str = ''

  def _panels(self) -> list['DataFrame']:
    """The cells, some groups of columns at a time."""
    panels: list[list[tuple[str, str]]] = [[]]
    for _, group in self.cells.columns.to_frame().groupby(level=0, sort=False):
      if len(panels[-1]) + len(group) > _MOST_COLUMNS:
        panels.append([])
      panels[-1] += list(group.index)
    return [self.cells[columns] for columns in panels if columns]

  def __str__(self) -> str:
    def text(cell: str) -> str:  # With room for a mark, so that numbers are aligned.
      return _plain(cell) + ' ' * (not cell.endswith((BEST, EQUAL)))

    panels = [panel.map(text).rename(index=_plain) for panel in self._panels()]
    texts = [panel.rename_axis(None).to_string() for panel in panels]
    return '\n'.join(['\n\n'.join(texts), *map(_plain, self.notes)])

  def _repr_html_(self) -> str:
    return self.to_html() + ''.join(f'<p>{escape(note)}</p>' for note in self.notes)

  def to_html(self) -> str:
    """The table as HTML, without its notes."""
    shown = _escaped(self.cells, escape, r'<b>\1</b>').rename_axis(None)
    return shown.rename(columns=escape).to_html(escape=False, border=0)

  def to_markdown(self) -> str:
    """The table and its notes as Markdown."""
    parts = []
    for panel in self._panels():
      heads = [self.cells.index.name or '', *(' '.join(c).strip() for c in panel)]
      rows = _escaped(panel, _markdown, r'**\1**').itertuples()
      parts.append('\n'.join(markdown([*map(_markdown, heads)], rows)))
    return '\n\n'.join([*parts, *map(_markdown, self.notes)]) + '\n'

  def to_latex(self) -> str:
    """Tables of booktabs, of some columns each; notes are comments."""
    parts = ['\n'.join(f'% {text}' for text in [PREAMBLE, *self.notes])]
    for i, panel in enumerate(self._panels()):
      groups = [group for group, _ in panel]
      wide = r'\multicolumn{%d}{c}{%s}'
      heads = [wide % (groups.count(g), _latex(g)) for g in dict.fromkeys(groups)]
      rows = [['', *heads], ['', *(_latex(head) for _, head in panel)]]
      rows += _escaped(panel, _latex, r'\\textbf{\1}').itertuples()
      texts = [' & '.join(row) + r' \\' for row in rows]
      first = self.caption or next(iter(self.notes), '')
      caption = ', '.join(filter(None, dict.fromkeys(groups))) if i else first
      label = 'tab:methods' + f'_{i + 1}' * bool(i)
      parts += [rf'\begin{{table*}}[t]\caption{{{_latex(caption)}}}\label{{{label}}}']
      parts += [rf'\centering\footnotesize\begin{{tabular}}{{l{"r" * len(groups)}}}']
      parts += [r'\toprule', *texts[:2], r'\midrule', *texts[2:], r'\bottomrule']
      parts += [r'\end{tabular}', r'\end{table*}']
    return '\n'.join(parts) + '\n'

  def to_csv(self) -> str:
    """The numbers as CSV, with all digits."""
    return self.numbers.to_csv(lineterminator='\n')

  def write(self, folder: pathlib.Path) -> None:
    """Writes table.md, .csv, .json and .tex to a folder."""
    numbers = self.numbers.reset_index().astype(object)
    rows = numbers.where(numbers.notna(), None).to_dict('records')
    texts = {'md': self.to_markdown(), 'csv': self.to_csv(), 'tex': self.to_latex()}
    texts['json'] = json.dumps(rows, indent=1) + '\n'
    for suffix, text in texts.items():
      write_atomically(folder / f'table.{suffix}', text)


def spread(mean: float, std: float, form: str) -> str:
  """'86.6 ± 0.9'; without a deviation where it is NaN, '' for a mean that is NaN."""
  texts = [format(x, form) for x in (mean, std) if not math.isnan(x)]
  return '' if math.isnan(mean) else ' ± '.join(texts)


def _escaped(cells: 'DataFrame', escape: Any, best: str) -> 'DataFrame':
  """Cells and names of rows, escaped; in `best`, group 1 is the text of a best cell."""
  shown = cells.map(escape).replace(f'^(.*){BEST}$', best, regex=True)
  return shown.rename(index=lambda name: escape(str(name)))


def _plain(value: object) -> str:
  return printable(value, limit=1000)


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
