"""The sizes of the clusters of one run over rounds."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fesem_jax.plots.style import SMALL, color_of, over_rounds

_MAX_NAMED = 12  # Clusters in the legend.
_SIZES = 'cluster_sizes.'


def sizes_of_clusters(rounds: pd.DataFrame) -> pd.DataFrame:
  """Clients of each cluster: the rounds of a run x the clusters 0, 1, ..."""
  sizes = rounds[rounds['metric'].str.startswith(_SIZES)]
  wide = sizes.pivot(index='round', columns='metric', values='value').fillna(0)
  wide = wide.rename(columns=lambda name: int(name.removeprefix(_SIZES))).astype(int)
  return wide[sorted(wide)].rename_axis(columns='cluster')


def cluster_sizes(rounds: pd.DataFrame, ax: Axes) -> Axes:
  """Draws the sizes of the clusters of one run; rounds without a record stay empty."""
  sizes = sizes_of_clusters(rounds)
  first, last = int(sizes.index[0]), int(sizes.index[-1])
  all_rounds = sizes.astype(float).reindex(range(first, last + 1))
  levels = np.pad(all_rounds.cumsum(axis=1).to_numpy(), ((0, 0), (1, 0)))
  levels[all_rounds.isna().any(axis=1)] = np.nan
  edges = np.arange(first, last + 2) - 0.5
  handles = {}
  for i, k in enumerate(sizes):
    ends, color = (levels[:, i + 1], edges), color_of(k)
    handles[k] = ax.stairs(*ends, baseline=levels[:, i], fill=True, color=color)
  for level in levels.T[1:-1]:  # Between neighbors of one color, too.
    ax.stairs(level, edges, baseline=None, color='white', linewidth=1)
  ax.set_xlim(edges[0], edges[-1])
  ax.set_ylim(0, sizes.sum(axis=1).max())
  at_end = sizes.iloc[-1]
  named = at_end[at_end > 0].nlargest(_MAX_NAMED).index.sort_values(ascending=False)
  texts = [f'{k}: {at_end[k]}' for k in named]
  title = f'cluster: clients\nin round {last}'
  fonts: dict[str, Any] = {'title': title, 'title_fontsize': SMALL}
  fonts |= {'fontsize': SMALL, 'loc': 'center left', 'bbox_to_anchor': (1, 0.5)}
  ax.legend([handles[k] for k in named], texts, **fonts)
  ax.set_ylabel('Clients')
  over_rounds(ax)
  return ax
