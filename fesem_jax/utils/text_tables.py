"""A table of figures, written for terminals and as Markdown, LaTeX and CSV."""

import csv
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from fesem_jax.utils.display import (
  in_latex,
  in_markdown,
  method_name,
  printable,
  with_method_names,
)

# What LaTeX needs in the preamble of a document.
PREAMBLE = r'\usepackage{booktabs,siunitx}'

# Of a LaTeX table, beside each other.
_MOST_COLUMNS = 8

_SETUP = (
  r'\sisetup{separate-uncertainty=true, retain-explicit-plus=true, '
  r'retain-zero-uncertainty=true, group-digits=none, detect-weight=true, '
  r'table-align-text-after=false, '
  # Aligned deviations would stand without a space before the sign.
  'table-align-uncertainty=false}'
)
_SYMBOLS = {'†': r'$^\dagger$', '°': r'$^\circ$', '±': r'$\pm$', '≥': r'$\ge$'}
_NUMBER = re.compile(r'([+-]?)(\d+)(?:\.(\d+))?(?: \\pm (\d+(?:\.\d+)?))?')


class Column(NamedTuple):
  """A column of a table."""

  key: str  # its name in CSV and JSON, where means end in _mean, deviations in _std
  head: str
  form: str = ''  # of its numbers, e.g. '.1f'; '' for texts, which are left-aligned
  group: str = ''  # heading that it shares with its neighbors
  spread: bool = False  # whether its figures have deviations
  factor: float = 1  # of the numbers that are shown; CSV and JSON have them without


class Cell(NamedTuple):
  """A figure of a table."""

  mean: float | None
  std: float | None = None
  best: bool = False  # bold
  after: str = ''  # marks behind the figure, e.g. '*'
  instead: str = ''  # what stands in place of no figure, e.g. 'diverged'


def cell(value: Sequence[float | None] | float | None, **more: Any) -> Cell:
  """The cell of a figure, or of its (mean, standard deviation); None is unknown."""
  mean, std = value if isinstance(value, Sequence) else (value, None)
  return Cell(mean, std, **more)


@dataclasses.dataclass(frozen=True)
class Table:
  """A table; names in its texts are as users give them, escaped when written.

  Attributes:
    columns: of all rows.
    rows: of one `Cell`, text or number a column; None is empty.
    caption: a sentence or more on what it shows.
    best: what the best cells are, behind their mark; '' without any.
    notes: sentences on single rows, below it.
    label: of LaTeX, behind 'tab:'.
  """

  columns: Sequence[Column]
  rows: Sequence[Sequence[Any]]
  caption: str = ''
  best: str = ''
  notes: Sequence[str] = ()
  label: str = ''

  def where(self, shown: Callable[[Column], bool]) -> 'Table':
    """The table with some of its columns."""
    kept = [i for i, column in enumerate(self.columns) if shown(column)]
    rows = [[row[i] for i in kept] for row in self.rows]
    return dataclasses.replace(self, columns=[self.columns[i] for i in kept], rows=rows)

  def beside(self, other: 'Table') -> 'Table':
    """The table with the columns that another of the same rows has and it lacks."""
    keys = {column.key for column in self.columns}
    more = other.where(lambda column: column.key not in keys)
    rows = [[*a, *b] for a, b in zip(self.rows, more.rows, strict=True)]
    return dataclasses.replace(self, columns=[*self.columns, *more.columns], rows=rows)

  def __str__(self) -> str:
    """The table for a terminal, its notes below it."""
    heads = [[c.head for c in self.columns]]
    groups = [c.group for c in self.columns]
    if any(groups):
      firsts = ['', *groups]
      heads.insert(0, [g * (g != b) for b, g in itertools.pairwise(firsts)])
    cells = [[printable(x, 255) for x in row] for row in self._texts('±')]
    for i in range(len(self.columns)):  # Marks stand in places of their own.
      marks = [_marks(row[i]) for row in self.rows]
      for row, mark in zip(cells, marks, strict=True):
        row[i] = row[i].removesuffix(mark.lstrip('•')) + mark.ljust(
          max(map(len, marks))
        )
    left = [i for i, c in enumerate(self.columns) if not c.form]
    notes = [printable(x, 2000) for x in self._said('•')]
    return '\n'.join(aligned([*heads, *cells], left) + notes)

  def as_markdown(self) -> str:
    """The caption, the table and its notes as Markdown."""
    heads = [in_markdown(f'{c.group} {c.head}'.strip()) for c in self.columns]
    rows = [
      [
        f'**{in_markdown(x, 500)}**' if isinstance(held, Cell) and held.best
        else in_markdown(x, 500)
        for x, held in zip(texts, row, strict=True)
      ]
      for texts, row in zip(self._texts(' ± '), self.rows, strict=True)
    ]  # fmt: skip
    caption, *notes = self._said('Bold')
    lines = [in_markdown(caption, 2000), ''] if caption else []
    lines += markdown(heads, rows)
    lines += [f'\n{in_markdown(note, 2000)}' for note in notes]
    return '\n'.join(lines) + '\n'

  def _said(self, best: str) -> list[str]:
    """The caption, with what the mark `best` means, and the notes."""
    marks = f'{best}: {self.best}' if self.best else ''
    return [f'{self.caption} {marks}'.strip(), *self.notes]

  def _texts(self, join: str) -> list[list[str]]:
    """Cells as text, `join` between mean and deviation."""
    return [
      [_text(x, c, join) for x, c in zip(row, self.columns, strict=True)]
      for row in self.rows
    ]

  def as_latex(self) -> str:
    """A LaTeX table of booktabs and siunitx, with caption, notes and label.

    Methods have the names that their papers write. Groups of columns stand below each
    other where there is no room beside.
    """
    panels = [self]
    groups = list(dict.fromkeys(c.group for c in self.columns if c.group))
    if len(self.columns) > _MOST_COLUMNS and groups:
      panels = [self._of_group(g, last=g == groups[-1]) for g in groups]
    caption = _latex(with_method_names(' '.join(filter(None, self._said('Bold')))))
    widest = max(len(panel.columns) for panel in panels)
    star = '*' * (widest > _MOST_COLUMNS)
    size = 'footnotesize' if widest < _MOST_COLUMNS else 'scriptsize'
    label = re.sub(r'[^A-Za-z0-9:-]+', '-', self.label)
    return '\n'.join([
      f'% {PREAMBLE}', rf'\begin{{table{star}}}[t]', rf'\centering\{size}',
      _SETUP, rf'\caption{{{caption}}}', rf'\label{{tab:{label}}}',
      r'\vspace{4pt}\setlength{\tabcolsep}{4pt}',
      '\n\\par\\medskip\n'.join(panel._tabular() for panel in panels),
      f'\\end{{table{star}}}\n',
    ])  # fmt: skip

  def _of_group(self, group: str, last: bool) -> 'Table':
    """The first column and those of a group, on the last one those of none, too."""
    shown = {group, ''} if last else {group}
    first = self.columns[0]
    return self.where(lambda c: c is first or c.group in shown)

  def _tabular(self) -> str:
    """The cells as LaTeX."""
    rows = [
      [_latex_cell(x, c) for x, c in zip(row, self.columns, strict=True)]
      for row in self.rows
    ]
    specs = [
      _specification([cells[i] for cells in rows])
      if column.form
      else _of_texts(cells[i] for cells in rows[: i * len(rows)])  # Names stay whole.
      for i, column in enumerate(self.columns)
    ]
    heads = [f'{{{_latex(c.head)}}}' for c in self.columns]
    lines = [
      rf'\begin{{tabular}}{{@{{}}{"".join(specs)}@{{}}}}', r'\toprule',
      *self._latex_groups(), f'{" & ".join(heads)} \\\\', r'\midrule',
      *(f'{" & ".join(cells)} \\\\' for cells in rows),
      r'\bottomrule', r'\end{tabular}',
    ]  # fmt: skip
    return '\n'.join(lines)

  def _latex_groups(self) -> list[str]:
    """The line of the headings that several columns share; none without any."""
    if not any(c.group for c in self.columns):
      return []
    cells, rules, at = [], [], 1
    for group, members in itertools.groupby(c.group for c in self.columns):
      width = len(list(members))
      cells.append(rf'\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}')
      if group:
        rules.append(rf'\cmidrule(lr){{{at}-{at + width - 1}}}')
      at += width
    return [f'{" & ".join(cells)} \\\\', ''.join(rules)]

  def records(self) -> list[dict[str, Any]]:
    """A dict for each row, numbers with all digits."""
    return [
      {k: v for c, x in zip(self.columns, row, strict=True) for k, v in _values(c, x)}
      for row in self.rows
    ]

  def as_csv(self) -> str:
    """The table as CSV: means and deviations in columns of their own, all digits."""
    head = [key for c in self.columns for key, _ in _values(c, None)]
    return csv_text(head, [list(record.values()) for record in self.records()])


def _values(column: Column, held: Any) -> list[tuple[str, Any]]:
  """Names and values of a cell in CSV and JSON."""
  if isinstance(held, str):
    held = printable(held, 2000)
  if not column.spread:
    return [(column.key, held.mean if isinstance(held, Cell) else held)]
  mean, std = held[:2] if isinstance(held, Cell) else (None, None)
  return [(f'{column.key}_mean', mean), (f'{column.key}_std', std)]


def _marks(held: Any) -> str:
  """The marks behind a figure in a terminal."""
  if not isinstance(held, Cell) or held.mean is None:
    return ''
  return '•' * held.best + held.after


def _text(held: Any, column: Column, join: str) -> str:
  """A cell as text."""
  if isinstance(held, str):
    return held
  if not isinstance(held, Cell):
    return (
      '' if held is None else format(held, column.form) if column.form else str(held)
    )
  if held.mean is None:
    return held.instead
  numbers = [format(column.factor * x, column.form) for x in held[:2] if x is not None]
  return join.join(numbers) + held.after


def _latex(text: str) -> str:
  text = in_latex(text, 4000).replace('--', '-{}-')
  return ''.join(_SYMBOLS.get(c, c) for c in text)


def _latex_cell(held: Any, column: Column) -> str:
  """A cell of LaTeX; braces keep siunitx from reading what is no number."""
  if not column.form:
    text = _text(held, column, ' ± ')
    return _latex(method_name(text) if column.key == 'method' else text)
  after, best = (held.after, held.best) if isinstance(held, Cell) else ('', False)
  text = _text(held._replace(after='') if after else held, column, r' \pm ')
  if not _NUMBER.fullmatch(text):
    return f'{{{_latex(text)}}}' if text else ''
  marks = f'{{{_latex(after).replace("*", "$^*$")}}}' if after else ''
  return r'\bfseries ' * best + text + marks


def _of_texts(cells: Iterable[str]) -> str:
  """The column of texts, with lines that break where they are long."""
  return 'l' if max(map(len, cells), default=0) < 50 else r'p{0.4\linewidth}'


def _specification(cells: Sequence[str]) -> str:
  """The column of siunitx with room for the numbers, deviations and marks of cells."""
  whole, decimals, spread, sign, longest = 1, 0, 0, '', ''
  for text in cells:
    number, brace, after = text.removeprefix(r'\bfseries ').partition('{')
    if (match := _NUMBER.fullmatch(number)) is None:
      continue
    plus, before, behind, deviation = match.groups(default='')
    sign, whole = plus or sign, max(whole, len(before))
    decimals = max(decimals, len(behind))
    spread = max(spread, len(deviation.replace('.', '')))
    longest = max(longest, brace + after, key=len)
  room = f'({spread})' if spread else ''
  post = f', table-space-text-post={longest}' if longest else ''
  return f'S[table-format={"+" * bool(sign)}{whole}.{decimals}{room}{post}]'


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
  """The lines of a Markdown table; the cells must be escaped."""
  lines = [f'| {" | ".join(cells)} |' for cells in (head, *rows)]
  return [lines[0], '|---' * len(head) + '|', *lines[1:]]


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """A table as CSV; None becomes an empty cell."""
  out = io.StringIO()
  csv.writer(out, lineterminator='\n').writerows([head, *rows])
  return out.getvalue()


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
  """Lines of cells, each column as wide as its widest cell.

  The head comes first in `rows`; `left` are numbers of the left-aligned columns.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      cell.ljust(width) if i in left else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]


def html(rows: Sequence[Sequence[str]]) -> str:
  """A table as HTML, its head first, for notebooks."""

  def row(cells: Sequence[str], tag: str) -> str:
    inside = ''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)
    return f'<tr>{inside}</tr>'

  head, *others = rows
  lines = [row(head, 'th'), *(row(cells, 'td') for cells in others)]
  return f'<table>{"".join(lines)}</table>'
