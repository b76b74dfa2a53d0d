"""Methods over seeds: curves with intervals, differences, distributions of clients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax import tasks
from fesem_jax.evaluation.paired import KINDS, OF_REPORTS, Differences, student_quantile
from fesem_jax.plots.runs import OVER, PlottedRun
from fesem_jax.plots.style import STYLE, curve_style, label_over, legend_below
from fesem_jax.utils.display import in_figure, method_name, names_in_figure
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.palette import color_of
from fesem_jax.utils.ranges import check_choice

# Label of each method -> its runs, one for each seed.
Runs = Mapping[str, Sequence[PlottedRun]]

# What bands and thin lines show.
SPREADS = {
  'interval': 'bands: 95 % interval of the mean over seeds (Student t)',
  'deviation': 'bands: one standard deviation over seeds',
  'all': 'thin lines: seeds; thick ones: their mean',
}


def curves_over_seeds(
  runs: Runs, over: str = 'rounds', spread: str = 'interval'
) -> Figure:
  """Draws the first figure of the task, its mean over the seeds of each method.

  Args:
    runs: label of each method -> its runs, all of one task. The mean is over the rounds
      that all runs of a method have.
    over: what is below the curves, as of `convergence`; methods that do not say it are
      left out.
    spread: of `SPREADS`.

  Returns:
    The figure, with a panel for the deployed and one for the fine-tuned models, of one
    range.

  Raises:
    UserError: on other names, or if no method says what it is drawn over.
  """
  check_choice('over', over, ('rounds', *OVER))
  check_choice('spread', spread, tuple(SPREADS))
  first = next(each[0] for each in runs.values() if each)
  figure_of, column = first.task.primary, first.task.primary_column
  named = zip(_names(runs), runs.values(), strict=True)
  drawn, names = 0, [name + _ended(each) for name, each in named]
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, 2, figsize=(8.4, 3.6), layout='constrained', sharey=True
    )
    for axis, (kind, name) in zip(axes, KINDS.items(), strict=True):
      for i, of_method in enumerate(runs.values()):
        x, y = _aligned(of_method, kind, column, over)
        drawn += len(x)
        if len(x):
          _draw(axis, x, figure_of.factor * y, spread, i, names[i])
      axis.set_title(f'{name.capitalize()} models', fontsize='medium')
      label_over(axis, over)
    if not drawn:
      plt.close(figure)
      raise UserError(f'over: no run has {over}')
    axes[0].set_ylabel(figure_of.title)
    if figure_of.percent:  # Intervals of few seeds go beyond what shares can be.
      low, high = axes[0].get_ylim()
      axes[0].set_ylim(max(low, -1), min(high, 101))
    most = max(len(each) for each in runs.values())
    seeds = f'{most} seeds; {SPREADS[spread]}' if most > 1 else 'one seed'
    of = first.of_honest + first.on_validation
    figure.suptitle(f'{in_figure(first.dataset)}{of}, {seeds}', fontsize='medium')
    legend_below(figure, axes[0])
  return figure


def _names(runs: Runs) -> list[str]:
  """Names of methods, with the number of seeds where others have more."""
  names = names_in_figure(map(method_name, runs))
  most = max(map(len, runs.values()), default=0)
  return [
    name + f' ({len(each)} of {most} seeds)' * (len(each) < most)
    for name, each in zip(names, runs.values(), strict=True)
  ]


def _ended(runs: Sequence[PlottedRun]) -> str:
  """Where curves of a method end before those of some of its runs, in words."""
  lasts = {run.history[-1]['round'] for run in runs}
  return f'\n(until a seed ended, round {min(lasts)})' if len(lasts) > 1 else ''


def _aligned(
  runs: Sequence[PlottedRun], kind: str, column: str, over: str
) -> tuple[np.ndarray, np.ndarray]:
  """Places [R], means over runs, and values [N, R] in the rounds that all runs have."""
  series = [
    dict(zip(*map(list, run.scores(kind, column)), strict=True)) for run in runs
  ]
  rounds = sorted(set.intersection(*map(set, series))) if series else []
  values = np.array([[of_run[r] for r in rounds] for of_run in series], float)
  if over == 'rounds' or not rounds:
    return np.array(rounds, float), values
  held = [run.until(over) for run in runs]
  places = np.array([[h.get(r, np.nan) for r in rounds] for h in held])
  known = np.isfinite(places).all(axis=0)
  return places.mean(axis=0)[known], values[:, known]


def _draw(
  axis: Axes, x: np.ndarray, y: np.ndarray, spread: str, i: int, label: str
) -> None:
  """Draws the mean of curves [N, R], and how they spread."""
  mean, count = y.mean(axis=0), len(y)
  style = curve_style(i, np.arange(len(x)))
  axis.plot(x, mean, label=label, **style)
  if count == 1:
    return
  if spread == 'all':
    for curve in y:
      axis.plot(x, curve, color=style['color'], linewidth=0.6, alpha=0.6)
    return
  half = y.std(axis=0, ddof=1)
  if spread == 'interval':
    half = half * student_quantile(count) / np.sqrt(count)
  axis.fill_between(x, mean - half, mean + half, color=style['color'], alpha=0.2, lw=0)


def forest(found: Differences, kind: str = 'deployed') -> Figure:
  """Draws the paired differences of methods to a reference, with their intervals.

  Args:
    found: `Comparison.differences`.
    kind: 'deployed' or 'finetuned'.

  Returns:
    The figure: a line for each method, filled where p is below 0.05.

  Raises:
    UserError: on another kind.
  """
  check_choice('kind', kind, tuple(KINDS))
  rows = found[kind]
  of = tasks.of(found).primary
  with plt.rc_context(STYLE):
    size = (5.0, 1.2 + 0.32 * len(rows))
    figure, axis = plt.subplots(figsize=size, layout='constrained')
    axis.axvline(0, color='0.4', linewidth=1)
    for place, row in enumerate(rows):
      color = color_of(0 if of.better(row['mean']) > 0 else 1)
      clear = row['p'] is not None and row['p'] < 0.05
      if row['low'] is not None:
        axis.plot([row['low'], row['high']], [place, place], color=color)
      fill = color if clear else 'white'
      axis.plot(row['mean'], place, 'o', color=color, markerfacecolor=fill)
    names = names_in_figure(method_name(row['method']) for row in rows)
    labels = [
      name + '\n(infinite)' * (not np.isfinite(row['mean']))
      for name, row in zip(names, rows, strict=True)
    ]
    axis.set_yticks(range(len(rows)), labels)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    unit = ' (percentage points)' if of.percent else ''
    measured = found['of'].removeprefix(', ')
    axis.set_xlabel(f'Difference of the micro {of.label}{unit}\n{measured}'.strip())
    meaning = ': mean and\n95 % interval over paired seeds; filled: p < 0.05'
    if all(row['low'] is None for row in rows):
      several = any(row['pairs'] > 1 for row in rows)
      why = 'all seeds differ by the same amount' if several else 'one seed'
      meaning = f'\n{why}, of which there is no interval'
    reference = in_figure(method_name(found['reference']))
    rounds = OF_REPORTS[found.get('report', 'last')]
    title = f'{KINDS[kind].capitalize()} models{rounds} minus {reference}{meaning}'
    figure.suptitle(title, fontsize='medium')
  return figure


def client_distributions(runs: Runs) -> Figure:
  """Draws how the first figure of the deployed models is spread over clients.

  Args:
    runs: label of each method -> its finished runs; clients of all seeds together.

  Returns:
    The figure: a violin for each method, its median, and the mean of the worst tenth
    of the clients. Infinite values are left out and counted beside the method.

  Raises:
    UserError: if no run has figures of clients.
  """
  first = next(each[0] for each in runs.values() if each)
  of = first.task.primary
  values: dict[str, np.ndarray] = {}
  infinite = []  # clients whose value has no place on the axis, by method
  for label, each in runs.items():
    held = [run.client_figures(f'deployed_{of.name}') for run in each]
    known = np.concatenate([x[~np.isnan(x)] for x in held if x is not None] or [[]])
    if np.isfinite(known).any():
      values[label] = of.factor * known[np.isfinite(known)]
      infinite.append(int(np.isinf(known).sum()))
  check(values, 'runs: none has metrics of its clients')
  with plt.rc_context(STYLE):
    size = (5.0, 1.4 + 0.5 * len(values))
    figure, axis = plt.subplots(figsize=size, layout='constrained')
    drawn: Any = axis.violinplot(
      list(values.values()), orientation='horizontal', showextrema=False,
      showmedians=True, widths=0.8,
    )  # fmt: skip
    for i, body in enumerate(drawn['bodies']):
      body.set(facecolor=color_of(i), alpha=0.5)
    drawn['cmedians'].set(color='black')
    for place, x in enumerate(values.values(), 1):
      worst_first = np.sort(x) if of.higher_is_better else -np.sort(-x)
      worst = worst_first[: -(-len(x) // 10)].mean()
      axis.plot(worst, place, 'v', color='black', markersize=5)
    names = _names({label: runs[label] for label in values})
    names = [
      name + f'\n(without {count} infinite)' * bool(count)
      for name, count in zip(names, infinite, strict=True)
    ]
    axis.set_yticks(range(1, len(values) + 1), names)
    axis.invert_yaxis()
    axis.set_xlabel(of.title.replace('Micro ', 'Deployed '))
    of_seeds = (
      'all seeds' if any(len(each) > 1 for each in runs.values()) else 'one seed'
    )
    honest = 'honest ' * bool(first.of_honest)
    figure.suptitle(
      f'{in_figure(first.dataset)}: {honest}clients of {of_seeds}'
      f'{first.on_validation}\nline: median; '
      'triangle: mean of the worst tenth', fontsize='medium',
    )  # fmt: skip
  return figure
