"""The first figure of the task and the objective over rounds, of one run or several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.runs import OVER, PlottedRun
from fesem_jax.plots.style import STYLE, curve_style, label_over, legend_below
from fesem_jax.tasks import Task
from fesem_jax.utils.display import in_figure, names_in_figure
from fesem_jax.utils.ranges import check_choice

# As many curves have a color and a marker that no other has.
_MOST = 12

# Title, path in a record, factor.
_Panel = tuple[str, tuple[str, ...], float]


def panels_of(task: Task, clustered: bool, of_honest: str = '') -> list[_Panel]:
  """The panels of curves over rounds; `of_honest` is that of the runs."""
  figure, column = task.primary, task.primary_column
  panels: list[_Panel] = [
    (
      f'{name} {figure.title[0].lower()}{figure.title[1:]}{of_honest}',
      (kind, column),
      figure.factor,
    )
    for kind, name in (('deployed', 'Deployed'), ('finetuned', 'Fine-tuned'))
  ]
  if clustered:
    panels.append(('Eq. 6: mean squared distance to center', ('objective',), 1))
  return panels


def convergence(runs: Sequence[PlottedRun], over: str = 'rounds') -> Figure:
  """Draws the first figure of the task, and Eq. 6 over rounds (Fig. 3).

  Args:
    runs: each is a curve of every panel; all of one task. One that does not say what
      curves are drawn over has none. Of many, the best have colors; see `ranked`.
    over: what is below the curves: 'rounds', 'gigabytes' sent both ways,
      'simulated_seconds' on clients' devices, or 'epsilon'.

  Returns:
    The figure; the panels of the deployed and the fine-tuned models, as of their
    accuracy, have one range, and there is a panel for Eq. 6 over rounds if any run has
    clusters.

  Raises:
    UserError: on another `over`.
  """
  check_choice('over', over, ('rounds', *OVER))
  by_round = over == 'rounds'
  clustered = by_round and any(len(run.series('objective')[0]) for run in runs)
  label = runs[0].task.primary.label
  if by_round:
    what = f'{label}{" and Eq. 6" * clustered} over rounds'
  else:
    what = f'{label} {OVER[over][0]}'
  figure = _drawn(runs, clustered, what, over)
  for axis in figure.axes:
    label_over(axis, over)
  if clustered:
    figure.axes[2].set_ylim(bottom=0)
  return figure


def _drawn(runs: Sequence[PlottedRun], clustered: bool, what: str, over: str) -> Figure:
  """Draws the panels of runs over 'rounds' or a key of `OVER`."""
  of_honest = next((run.of_honest for run in runs if run.of_honest), '')
  panels, curves = panels_of(runs[0].task, clustered, of_honest), ranked(runs)
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, len(panels), figsize=(4.2 * len(panels), 3.6), layout='constrained'
    )
    axes[1].sharey(axes[0])
    for axis, (label, path, factor) in zip(axes, panels, strict=True):
      for run, name, place in curves:
        scored = len(path) > 1
        rounds, values = run.scores(*path) if scored else run.series(*path)
        x = rounds.astype(float)
        if over != 'rounds':
          held = run.until(over)
          x = np.array([held.get(r, np.nan) for r in rounds.tolist()])
        there = np.isfinite(x)
        if there.any():  # An empty curve that is not clipped has no extent.
          style = style_of(place, rounds[there])
          axis.plot(x[there], factor * values[there], label=name, **style)
      axis.set_title(label, fontsize='medium')
    of = {run.dataset for run in runs} if len(runs) > 1 else {runs[0].name}
    shown = in_figure(of.pop()) if len(of) == 1 else f'{len(runs)} runs'
    seeds = {run.config.get('seed') for run in runs}
    # A table beside the figure may have means over several seeds.
    one = len(runs) > 1 and len(seeds) == 1 and None not in seeds
    kinds = {run.on_validation for run in runs}  # Labels say it of some runs.
    what += kinds.pop() if len(kinds) == 1 else ''
    figure.suptitle(f'{shown}: {what}{f", seed {seeds.pop()} only" if one else ""}')
    if len(runs) > 1:
      legend_below(figure, axes[0])
  return figure


def ranked(
  runs: Sequence[PlottedRun],
) -> list[tuple[PlottedRun, str, int | None]]:
  """Runs, their labels in a legend, and the numbers of their styles; None is gray.

  More curves than `_MOST` cannot be told apart: those whose deployed models are the
  best in the end have colors, in this order, and so has FedAvg; all others have one
  label.
  """
  labels, places = labels_of(runs), range(len(runs))
  if len(runs) <= _MOST:
    return list(zip(runs, labels, places, strict=True))
  figure, column = runs[0].task.primary, runs[0].task.primary_column

  def last(i: int) -> float:
    values = runs[i].scores('deployed', column)[1]
    return figure.better(values[-1]) if len(values) else -np.inf

  order = sorted(places, key=last, reverse=True)
  base = next((i for i in order if runs[i].config.get('algorithm') == 'fed_avg'), None)
  best = order[:_MOST]
  if base is not None and base not in best:
    best[-1] = base
  others = [i for i in order if i not in best]
  shown: list[tuple[PlottedRun, str, int | None]] = [
    (runs[i], labels[i], place) for place, i in enumerate(best)
  ]
  name = f'the other {len(others)}'
  # A label that begins with an underscore is in no legend.
  return shown + [(runs[i], '_' * (i != others[0]) + name, None) for i in others]


def style_of(place: int | None, rounds: np.ndarray) -> dict[str, Any]:
  """How a curve of `ranked` is drawn."""
  if place is None:
    return {'color': '0.75', 'linewidth': 0.8, 'zorder': 1}
  return curve_style(place, rounds)


def labels_of(runs: Sequence[PlottedRun]) -> list[str]:
  """Distinct labels: where methods repeat, what their configurations differ in."""

  def label(run: PlottedRun, name: str) -> str:
    same = [other.config for other in runs if other.name == run.name]

    def differs(k):
      if k in ('data_digest', 'own_code', 'code', 'versions'):  # Each seed has its own.
        return False
      others = [other.config for other in runs] if k == 'seed' else same
      value = run.config[k]
      return value is not None and any(c.get(k) != value for c in others)

    details = {k: v for k, v in run.config.items() if differs(k)}
    return ', '.join(
      [
        name,
        *(f'{in_figure(k)} {in_figure(v)}' for k, v in details.items()),
      ]
    )

  names = names_in_figure(run.name for run in runs)
  return [label(*each) for each in zip(runs, names, strict=True)]
