"""Draws saved results of `studies.growth`: time and memory as work grows."""

import pathlib
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, curve_style, save

# Axis -> what is written below it.
_LABELS = {
  'clients': 'Clients',
  'centers': 'Centers K',
  'parameters': 'Parameters of a model',
  'epochs': 'Local epochs',
}


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Writes the figure as .png and .svg."""
  for written in save(growth(rows), path):
    print(written)


def growth(rows: list[dict[str, Any]]) -> Figure:
  """Draws a column for each axis that was measured.

  Args:
    rows: of `studies.growth`.

  Returns:
    The figure: above, processor time of a client and round; below, memory of a client.
    A dotted line grows in proportion to the number, or, over clients, is constant.
  """
  axes_of = [a for a in _LABELS if any(row['axis'] == a for row in rows)]
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      2,
      len(axes_of),
      figsize=(3.1 * len(axes_of), 5.6),
      squeeze=False,
      sharex='col',
      layout='constrained',
    )
    for column, axis in enumerate(axes_of):
      own = sorted((r for r in rows if r['axis'] == axis), key=lambda r: r['value'])
      values = [row['value'] for row in own]
      times = [row['microseconds_per_client'] for row in own]
      memory = [row['bytes_per_client'] / 2**10 for row in own]
      for place, measured in zip(axes[:, column], (times, memory), strict=True):
        place.loglog(values, measured, **curve_style(0))
        grows = [1.0 if axis == 'clients' else v / values[-1] for v in values]
        line = [measured[-1] * share for share in grows]
        place.loglog(values, line, ':', color='gray', label='in proportion')
        place.set_ylim(min(measured) / 10, max(measured) * 10)  # Two decades at least.
      axes[1, column].set_xlabel(_LABELS[axis])
    axes[0, 0].set_ylabel('Processor µs of a client and round')
    axes[1, 0].set_ylabel('KiB of a client')
    axes[0, 0].legend()
  return figure
