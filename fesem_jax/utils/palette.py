"""The colors of figures: the color-blind safe palette of Okabe and Ito."""

PALETTE = (
    '#0072B2', '#D55E00', '#009E73', '#CC79A7',
    '#E69F00', '#56B4E9', '#000000', '#999999',
)  # fmt: skip


def color_of(i: int) -> str:
  """The color of the i-th run or cluster."""
  return PALETTE[i % len(PALETTE)]
