"""Methods side by side: paired differences, and clients."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fesem_jax.analysis import tables
from fesem_jax.plots.lines import metric_name
from fesem_jax.plots.style import color_of, in_figure, names_in_figure
from fesem_jax.run.results.client_table import counted
from fesem_jax.utils.errors import check


def differences(frame: pd.DataFrame, ax: Axes) -> Axes:
  """Draws the differences of methods to a reference; filled where p is below 0.05.

  `frame` is of `tables.differences` or `Comparison.differences`.
  """
  column, names = frame.attrs['column'], names_in_figure(frame.index)
  ax.axvline(0, color='0.4', linewidth=1)
  for place, row in enumerate(frame.itertuples()):
    color = color_of(0 if tables.metric(column).better(row.difference) > 0 else 1)
    ax.plot([row.low, row.high], [place, place], color=color)
    fill = color if row.p < 0.05 else 'white'
    ax.plot(row.difference, place, 'o', color=color, markerfacecolor=fill)
    names[place] += '\n(infinite)' * bool(np.isinf(row.difference))
  ax.set_yticks(range(len(frame)), names)
  ax.set_ylim(len(frame) - 0.5, -0.5)
  reference = in_figure(str(frame.attrs['reference']))
  label = metric_name(column).replace('(%)', '(points)')
  ax.set_xlabel(f'{label}\nminus {reference}')
  return ax


def client_spread(clients: pd.DataFrame, ax: Axes, column: str = '') -> Axes:
  """Draws how a metric is spread over the clients of all seeds of each method.

  A violin for each method, its median as a line, and the mean of the worst tenth as a
  triangle. Bad clients are left out, and infinite values, which are counted beside the
  method. `column` is by default the first metric of deployed models; `UserError` if the
  clients do not have it.
  """
  column = column or next((c for c in clients if c.startswith('deployed_')), '')
  check(column in clients, f'clients: have no metric {column!r}')
  metric = tables.metric(column)
  measured = counted(clients).dropna(subset=column)
  groups = dict(
    iter((metric.factor * measured[column]).groupby(measured['method'], observed=True))
  )
  values = [group[np.isfinite(group)].to_numpy() for group in groups.values()]
  drawn: Any = ax.violinplot(
    values, orientation='horizontal', showextrema=False, showmedians=True, widths=0.8
  )
  drawn['cmedians'].set(color='black')
  names = names_in_figure(groups)
  for i, (x, group) in enumerate(zip(values, groups.values(), strict=True)):
    worst_first = np.sort(x) if metric.higher_is_better else -np.sort(-x)
    drawn['bodies'][i].set(facecolor=color_of(i), alpha=0.5)
    worst = worst_first[: -(-len(x) // 10)].mean()
    ax.plot(worst, i + 1, 'v', color='black', markersize=5)
    infinite = len(group) - len(x)
    names[i] += f'\n(without {infinite} infinite)' * bool(infinite)
  ax.set_yticks(range(1, len(values) + 1), names)
  ax.invert_yaxis()
  ax.set_xlabel(metric_name(column))
  return ax
