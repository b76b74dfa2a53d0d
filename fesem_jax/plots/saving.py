"""Figures as files."""

import pathlib

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.style import chosen_style
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import UserError

_SUFFIXES = ('.png', '.svg')


def save(figure: Figure, path: pathlib.Path) -> list[pathlib.Path]:
  """Writes a figure as PNG and as SVG, and closes it.

  The style that `use_style` chose decides its size, and whether there is a PDF.

  Args:
    figure: to write.
    path: of both files, without a suffix or with one of theirs; its folder is made if
      absent.

  Returns:
    The paths of the files.

  Raises:
    UserError: if they cannot be written.
  """
  name = path.stem if path.suffix in _SUFFIXES else path.name
  _, scale, more = chosen_style()
  written = [path.with_name(name + suffix) for suffix in (*_SUFFIXES, *more)]
  file = path.parent
  try:
    file.mkdir(parents=True, exist_ok=True)
    # The same figure gives the same file: no date, no random ids, and no layout that a
    # user's settings ask for.
    with plt.rc_context({
      'svg.hashsalt': 'fesem_jax',
      'figure.autolayout': False,
      'figure.constrained_layout.use': False,
    }):  # fmt: skip
      figure.set_size_inches(*(scale * figure.get_size_inches()).tolist())
      # Laid out and measured once: each would take as long as the drawing of a file.
      figure.draw_without_rendering()
      figure.set_layout_engine(None)
      extent = figure.get_tightbbox().padded(plt.rcParams['savefig.pad_inches'])
      for file in written:
        dated = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}}.get(
          file.suffix
        )
        with replacing(file) as out:
          figure.savefig(
            out, format=file.suffix[1:], bbox_inches=extent, metadata=dated
          )
  except OSError as e:
    raise UserError(f'Cannot write {file}: {e.strerror}.') from e
  plt.close(figure)
  return written
