"""What all figures share: Matplotlib, colors, markers, fonts.

Colors are Okabe and Ito's palette, which color-blind readers can tell apart;
clusters also differ by marker or position, never by color alone.
"""

from typing import Any

import matplotlib

matplotlib.use('Agg')  # Files only, whatever displays there are.

PALETTE = (
    '#0072B2', '#D55E00', '#009E73', '#CC79A7',
    '#E69F00', '#56B4E9', '#000000', '#999999',
)  # fmt: skip
MARKERS = 'osD^vPX*<>hd'
STYLE: dict[Any, Any] = {
  'figure.dpi': 150,
  'font.size': 10,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.alpha': 0.3,
  'legend.frameon': False,
}


def color_of(i: int) -> str:
  """The color of run or cluster number i."""
  return PALETTE[i % len(PALETTE)]
