"""Figures as files."""

import pathlib
from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from fesem_jax.plots.style import Style, chosen_style
from fesem_jax.utils.atomic_files import replacing

_SUFFIXES = ('.png', '.svg')
# Wider figures, by the width of one column, take two; inches to which widths are
# right, and how often a figure is laid out for them at most.
_ONE_COLUMN, _NEAR, _TRIES = 1.3, 0.03, 4


def save(
  figure: Figure, path: pathlib.Path, formats: Sequence[str] = ()
) -> list[pathlib.Path]:
  """Writes a figure as PNG and as SVG, or in other formats, and closes it.

  The style that `use_style` chose decides its size, and whether there is a PDF.

  Args:
    figure: to write.
    path: of both files, without a suffix or with one of theirs; its folder is made if
      absent.
    formats: of pdf, png and svg; default: png, svg, and pdf where the style has it.

  Returns:
    The paths of the files.
  """
  name = path.stem if path.suffix in _SUFFIXES else path.name
  style = chosen_style()
  suffixes = [f'.{kind}' for kind in formats] or [*_SUFFIXES, *style.further]
  written = [path.with_name(name + suffix) for suffix in suffixes]
  path.parent.mkdir(parents=True, exist_ok=True)
  # The same figure gives the same file: no date, no random ids, and no layout that a
  # user's settings ask for.
  with plt.rc_context({
    'svg.hashsalt': 'fesem_jax',
    'figure.autolayout': False,
    'figure.constrained_layout.use': False,
  }):  # fmt: skip
    extent = _sized(figure, style)
    for file in written:
      dated = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}}.get(file.suffix)
      with replacing(file) as out:
        figure.savefig(out, format=file.suffix[1:], bbox_inches=extent, metadata=dated)
  plt.close(figure)
  return written


def _sized(figure: Figure, style: Style) -> Bbox:
  """Gives a figure its size; what it extends over, in inches.

  It is laid out and measured here: each file would take as long as its drawing.
  """
  width, height = (style.scale * figure.get_size_inches()).tolist()
  pad = plt.rcParams['savefig.pad_inches']
  wide = width
  if style.columns:
    wide = style.columns[width > _ONE_COLUMN * style.columns[0]]
  for _ in range(_TRIES):
    figure.set_size_inches(width, height)
    if (engine := figure.get_layout_engine()) is not None:
      engine.execute(figure)
    extent = figure.get_tightbbox().padded(pad)
    # In columns, legends and labels beside the axes count as well.
    if not style.columns or abs(wide - extent.width) < _NEAR:
      break
    width += wide - extent.width
  figure.set_layout_engine(None)
  return extent
