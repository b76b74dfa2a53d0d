"""The clusters over rounds: sizes, clients that moved, agreement with the truth."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE, chosen_style, curve_style, over_rounds
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.palette import PALETTE, color_of

_MAX_NAMED = 12  # Clusters in the legend.
_AGREEMENT = ('ari', 'nmi', 'ami')
_LINES = ('-', '--', ':')


def clusters_over_rounds(run: PlottedRun) -> Figure:
  """Draws cluster sizes, clients that moved, and agreement with the true clusters.

  Rounds of which nothing is recorded stay empty.

  Args:
    run: of a method with clusters.

  Returns:
    The figure; the panel of moves is there if moves are recorded, that of ARI,
    NMI and AMI if the true clusters are known.
  """
  moved_rounds, moved = run.series('moved')
  _, ari = run.series('ari')
  panels = 1 + bool(len(moved)) + bool(len(ari))
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, panels, figsize=(4.2 * panels + 1.2, 3.4), squeeze=False, layout='constrained'
    )
    rest = list(axes[0])
    _sizes(rest.pop(0), *run.series('cluster_sizes'))
    if len(moved):
      axis = rest.pop(0)
      axis.bar(moved_rounds, moved, color=PALETTE[0], width=0.8)
      axis.set_title('Clients that moved', fontsize='medium')
      axis.set_ylim(0, max(1, 1.1 * moved.max()))
      axis.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
      if not moved.any():
        middle = {'transform': axis.transAxes, 'ha': 'center', 'va': 'center'}
        axis.text(0.5, 0.5, 'no move in the recorded rounds', **middle)
    if len(ari):
      axis = rest.pop(0)
      for i, key in enumerate(_AGREEMENT):
        rounds, values = run.series(key)
        if not len(rounds):  # Older runs have no AMI.
          continue
        axis.plot(
          rounds,
          values,
          label=key.upper(),
          linestyle=_LINES[i],
          **curve_style(i, rounds),
        )
      axis.set_title('Agreement with the true clusters', fontsize='medium')
      axis.set_ylim(min(-0.02, axis.dataLim.y0), 1.03)
      axis.legend(loc='best', borderaxespad=1.2)  # Below markers at 1.
    for axis in axes[0]:
      over_rounds(axis)
    bad = ', bad clients too' * bool(run.of_honest)
    figure.suptitle(f'{in_figure(run.name)}: clusters over rounds{bad}')
  return figure


def _sizes(axis: Axes, rounds: np.ndarray, sizes: np.ndarray) -> None:
  """Draws sizes [R, K] of clusters as bands, a step for each recorded round [R]."""
  first, last = int(rounds[0]), int(rounds[-1])
  levels = np.full((last - first + 1, sizes.shape[1] + 1), np.nan)  # Empty rounds.
  levels[rounds - first] = np.pad(sizes.cumsum(axis=1), ((0, 0), (1, 0)))
  edges = np.arange(first, last + 2) - 0.5
  bands = [
    axis.stairs(
      levels[:, k + 1], edges, baseline=levels[:, k], fill=True, color=color_of(k)
    )
    for k in range(sizes.shape[1])
  ]
  for k in range(1, sizes.shape[1]):  # Between neighbors of one color, too.
    axis.stairs(levels[:, k], edges, baseline=None, color='white', linewidth=1)
  axis.set_title('Clients of each cluster', fontsize='medium')
  axis.set_ylim(0, sizes.sum(axis=1).max())
  axis.set_xlim(edges[0], edges[-1])
  named = np.flatnonzero(sizes[-1])
  if len(named) > _MAX_NAMED:
    named = np.sort(named[np.argsort(-sizes[-1][named], kind='stable')[:_MAX_NAMED]])
  axis.legend(  # In the order of the bands, from the top.
    [bands[k] for k in named[::-1]],
    [f'{k}: {sizes[-1, k]}' for k in named[::-1]],
    title=f'cluster: clients\nin round {last}',
    loc='center left',
    bbox_to_anchor=(1, 0.5),
    fontsize=chosen_style().small,
    title_fontsize=chosen_style().small,
  )
