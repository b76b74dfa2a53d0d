"""Tables as Markdown, as CSV and as aligned text."""

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


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


def mean_and_deviation(
  value: Sequence[float | None] | None, digits: int = 1, join: str = ' ± '
) -> str:
  """A mean and its standard deviation; either may be None."""
  return join.join(f'{x:.{digits}f}' for x in value or () if x is not None)
