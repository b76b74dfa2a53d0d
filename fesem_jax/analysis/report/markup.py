"""HTML of text, and of the Markdown that tables are written in."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

from fesem_jax.utils.display import in_markdown, printable
from fesem_jax.utils.text_tables import markdown


def escaped(value: object, limit: int = 255) -> str:
  """A value as one line of HTML text."""
  return html.escape(printable(value, limit))


def from_markdown(text: str, name: str) -> str:
  """Tables, paragraphs and bold text of Markdown as HTML; wide tables scroll alone.

  `text` is as `text_tables.markdown` writes it; `name` is that of the table, for those
  who do not see it.
  """
  from markdown_it import MarkdownIt  # An optional dependency.

  rules = ['table', 'escape', 'entity', 'emphasis', 'balance_pairs']
  parser = MarkdownIt('zero', {'html': False}).enable(rules)
  scrolled = (
    f'<div class="wide" tabindex="0" role="region" aria-label="{escaped(name)}"><table>'
  )
  page = parser.render(text).replace('<table>', scrolled)
  return page.replace('</table>', '</table></div>')


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], name: str) -> str:
  """A table of plain values as HTML, None as an empty cell; '' without rows."""
  cells = [['' if x is None else in_markdown(x) for x in row] for row in rows]
  if not cells:
    return ''
  return from_markdown('\n'.join(markdown(head, cells)), name)
