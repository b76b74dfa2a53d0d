"""Equations of the manual as pictures, and those of docstrings line by line.

Pages hold TeX between dollar signs, which a repository's web view typesets. The build
makes an SVG path of it with Matplotlib, so that pages need neither a network nor
scripts. Matplotlib knows a part of TeX; anything else fails the build.
"""

import html
import re
from typing import Any

import griffe
import numpy as np
from matplotlib import font_manager, mathtext, textpath
from matplotlib.path import Path

_SECTION = re.compile(r'^(Args|Attributes|Returns|Raises|Yields):$', re.M)

# What pymdownx.arithmatex makes of TeX in a page: `\(` and `\)` are inline. What ends
# the clause stays beside it.
_TEX = re.compile(
  r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>([.,;:)]*)', re.S
)
_UNITS = 1000  # Of an SVG, to one em.
_FONT = font_manager.FontProperties(size=_UNITS, math_fontfamily='stix')
_SCALE = 1.1  # STIX letters are smaller than those of the text.
_COMMANDS = {
  Path.MOVETO: 'M', Path.LINETO: 'L', Path.CURVE3: 'Q', Path.CURVE4: 'C',
  Path.CLOSEPOLY: 'Z',
}  # fmt: skip


def drawn(tex: str) -> str:
  """TeX as an SVG that stands on the line of the text and has its color.

  Args:
    tex: an equation, without dollar signs.

  Raises:
    ValueError: if Matplotlib does not know it.
  """
  width, height, depth, *_ = mathtext.MathTextParser('path').parse(
    f'${tex}$', 72, _FONT
  )
  path = textpath.TextPath((0, 0), f'${tex}$', prop=_FONT)
  parts = []
  for points, code in path.iter_segments(simplify=False):
    numbers = [] if code == Path.CLOSEPOLY else points.reshape(-1, 2) * [1, -1]
    parts.append(_COMMANDS[code] + ' '.join(f'{x:.0f}' for x in np.ravel(numbers)))
  em = _SCALE / _UNITS
  return (
    f'<svg class="equation" role="img" aria-label="{html.escape(tex)}" '
    f'viewBox="0 {-height:.0f} {width:.0f} {height + depth:.0f}" '
    f'style="width:{width * em:.3f}em;height:{(height + depth) * em:.3f}em;'
    f'vertical-align:{-depth * em:.3f}em"><path d="{"".join(parts)}"/></svg>'
  )


def on_page_content(page_html: str, **kwargs: Any) -> str:
  """Called by MkDocs with every page: draws its equations.

  Raises:
    ValueError: on TeX that Matplotlib does not know.
  """
  where = kwargs['page'].file.src_uri

  def draw(found: re.Match) -> str:
    tex = html.unescape(found[2]).strip()
    try:
      return f'<{found[1]} class="unbroken">{drawn(tex)}{found[3]}</{found[1]}>'
    except ValueError as e:
      raise ValueError(f'{where}: Matplotlib cannot draw ${tex}$.') from e

  return _TEX.sub(draw, page_html)


def fenced(docstring: str) -> str:
  """The docstring with indented paragraphs as code blocks; its sections stay."""
  section = _SECTION.search(docstring)
  end = section.start() if section else len(docstring)
  paragraphs = docstring[:end].split('\n\n')
  for i, paragraph in enumerate(paragraphs):
    lines = paragraph.strip('\n').split('\n')
    if all(line.startswith('  ') for line in lines):
      paragraphs[i] = '\n'.join(['```text', *(line[2:] for line in lines), '```'])
  return '\n\n'.join(paragraphs) + docstring[end:]


class Equations(griffe.Extension):
  """Applies `fenced` to every docstring."""

  def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
    """Called by Griffe with every module, class, function and attribute."""
    if obj.docstring:
      obj.docstring.value = fenced(obj.docstring.value)
