"""Draws a saved result of `studies.recovery`: ARI by round, and by wrong starts."""

import json
import pathlib
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.figure import Figure

from fesem_jax.plots.style import MARKERS, PALETTE, STYLE, color_of, legend_below, save


def draw(file: pathlib.Path) -> None:
  """Draws the last run of a file of results, as .png and .svg beside it."""
  run = json.loads(file.read_text())['runs'][-1]
  for path in save(recovery(run['rows']), file.with_suffix('')):
    print(f'{path}: {run["flags"]}')


def recovery(rows: list[dict[str, Any]]) -> Figure:
  """Draws mean ARI of each rule, the best rule first in the legend.

  Args:
    rows: of `studies.recovery`.

  Returns:
    The figure: on the left ARI by round from the most wrong starts, on the right, where
    there are several shares of clients put elsewhere, ARI at the end by share.
  """
  shares = sorted({row['shuffle'] for row in rows})
  hardest = [row for row in rows if row['shuffle'] == shares[-1]]
  hardest.sort(key=lambda row: -row['ari'])
  # A rule looks the same in figures of other data, where others may be better.
  rules = list(dict.fromkeys(row['rule'] for row in rows))
  with plt.rc_context(STYLE):
    count = 1 + (len(shares) > 1)
    figure, axes = plt.subplots(
      1,
      count,
      figsize=(5.2 * count, 4.2),
      squeeze=False,
      sharey=True,
      layout='constrained',
    )
    for row in hardest:
      i = rules.index(row['rule'])
      style = {
        'color': color_of(i),
        'linestyle': '-' if i < len(PALETTE) else '--',  # Colors repeat.
        'marker': MARKERS[i % len(MARKERS)],
        'markersize': 4,
      }
      means = np.mean(row['curves'], axis=0)
      label = f'{row["rule"]} ({row["recovered"]} of {row["seeds"]})'
      axes[0, 0].plot(means, label=label, markevery=max(1, len(means) // 12), **style)
      if count == 2:
        by_share = {r['shuffle']: r['ari'] for r in rows if r['rule'] == row['rule']}
        there = sorted(by_share)
        axes[0, 1].plot(there, [by_share[share] for share in there], **style)
    axes[0, 0].set(xlabel='Round', ylabel='Mean ARI against the true groups')
    axes[0, 0].set_title(f'{100 * shares[-1]:g} % of clients put elsewhere')
    axes[0, 0].xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if count == 2:
      axes[0, 1].set_xlabel('Share of clients put elsewhere at the start')
      axes[0, 1].set_title('After the last round')
      axes[0, 1].set_xticks(shares)
    where = ', left' if count == 2 else ''
    title = f'Rule (seeds with ARI 1 at the end{where})'
    legend_below(figure, axes[0, 0], title=title)
  return figure
