"""A table for terminals, notebooks, and as Markdown, HTML, LaTeX and CSV."""

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
  '±': r'$\pm$', '≥': r'$\ge$', '°': r'$^\circ$',
}  # fmt: skip
_MARKDOWN = {c: '\\' + c for c in '\\`*[]<>|&~'}
BEST, EQUAL = '•°'  # Marks of the best mean, and of what does not differ from it.
_MOST_COLUMNS = 7  # Side by side.
_LENGTH = 1000  # Characters of a text, at most.


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

  def __str__(self) -> str:
    panels = []
    for panel in self._panels():
      shown = panel.map(_plain).apply(_with_room_for_marks)
      panels.append(shown.rename(index=_plain).rename_axis(None).to_string())
    return '\n'.join(['\n\n'.join(panels), *map(_plain, self.notes)])

  def _repr_html_(self) -> str:
    return self.to_html() + ''.join(f'<p>{escape(note)}</p>' for note in self.notes)

  def to_html(self) -> str:
    """The table as HTML, without its notes."""
    shown = _escaped(self.cells, escape, '<b>%s</b>').rename_axis(None)
    return shown.rename(columns=escape).to_html(escape=False, border=0)

  def to_markdown(self) -> str:
    """The table and its notes as Markdown."""
    parts = []
    for panel in self._panels():
      heads = [self.cells.index.name or '', *(' '.join(c).strip() for c in panel)]
      rows = _escaped(panel, _markdown, '**%s**').itertuples()
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
      rows += _escaped(panel, _latex, r'\textbf{%s}').itertuples()
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

  def write(self, folder: pathlib.Path, name: str = 'table') -> None:
    """Writes NAME.md, .csv, .json and .tex to a folder."""
    numbers = self.numbers.reset_index().astype(object)
    rows = numbers.where(numbers.notna(), None).to_dict('records')
    texts = {'md': self.to_markdown(), 'csv': self.to_csv(), 'tex': self.to_latex()}
    texts['json'] = json.dumps(rows, indent=1) + '\n'
    for suffix, text in texts.items():
      write_atomically(folder / f'{name}.{suffix}', text)


def spread(mean: float, std: float, form: str) -> str:
  """'86.6 ± 0.9'; without a deviation where it is NaN, '' for a mean that is NaN."""
  texts = [format(x, form) for x in (mean, std) if not math.isnan(x)]
  return '' if math.isnan(mean) else ' ± '.join(texts)


def _with_room_for_marks(column: Sequence[str]) -> list[str]:
  """Texts of a column, aligned where some of them end in marks."""
  marks = [len(text) - len(text.rstrip(BEST + EQUAL)) for text in column]
  return [t + ' ' * (max(marks) - n) for t, n in zip(column, marks, strict=True)]


def _escaped(
  cells: 'DataFrame', escape: Callable[[str], str], best: str
) -> 'DataFrame':
  """Cells and names of rows, escaped; the best ones in another form."""

  def text(cell: str) -> str:
    bare = escape(cell.removesuffix(BEST))
    return best % bare if cell.endswith(BEST) else bare

  return cells.map(text).rename(index=lambda name: escape(str(name)))


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
