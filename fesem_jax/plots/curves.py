"""The first figure of the task and the objective over rounds, of one run or several."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import (
  STYLE,
  curve_style,
  legend_below,
  over_bytes,
  over_rounds,
)
from fesem_jax.results import costs
from fesem_jax.tasks import Task
from fesem_jax.utils.display import in_figure

# As many curves have a color and a marker that no other has.
_MOST = 12

# Title, path in a record, factor.
_Panel = tuple[str, tuple[str, ...], float]


def panels_of(task: Task, clustered: bool, of_honest: str = '') -> list[_Panel]:
  """The panels of curves over rounds; `of_honest` is that of the runs."""
  figure, column = task.primary, task.primary_column
  found: list[_Panel] = [
    (
      f'{name} {figure.title[0].lower()}{figure.title[1:]}{of_honest}',
      (kind, column),
      figure.factor,
    )
    for kind, name in (('deployed', 'Deployed'), ('finetuned', 'Fine-tuned'))
  ]
  if clustered:
    found.append(('Eq. 6: mean squared distance to center', ('objective',), 1))
  return found


def convergence(runs: Sequence[PlottedRun]) -> Figure:
  """Draws the first figure of the task and Eq. 6 over rounds (Fig. 3).

  Args:
    runs: each is a curve of every panel; all of one task. Of many, the best have
      colors; see `ranked`.

  Returns:
    The figure; the panels of the deployed and the fine-tuned models, as of their
    accuracy, have one range, and there is a panel for Eq. 6 if any run has clusters.
  """
  clustered = any(len(run.series('objective')[0]) for run in runs)
  what = f'{runs[0].task.primary.label}{" and Eq. 6" * clustered} over rounds'
  figure = _drawn(runs, clustered, what, lambda run, rounds: rounds)
  for axis in figure.axes:
    over_rounds(axis)
  if clustered:
    figure.axes[2].set_ylim(bottom=0)
  return figure


def sends(run: PlottedRun) -> bool:
  """Whether the records of a run count bytes sent."""
  return any(costs.gigabytes(run.history)[1])


def by_gigabytes(runs: Sequence[PlottedRun]) -> Figure:
  """Draws the first figure of the task over 10^9 bytes sent, both ways together.

  Args:
    runs: each is a curve of both panels; all of one task. Of one that sends nothing,
      or does not say what, there is none. Of many, the best have colors; see
      `ranked`.

  Returns:
    The figure, with one panel for the deployed and one for the fine-tuned models.
  """

  def sent(run: PlottedRun, rounds: np.ndarray) -> np.ndarray:
    at, total = costs.gigabytes(run.history)
    known = np.isin(rounds, at) & any(total)
    return np.where(known, np.interp(rounds, at or [0], total or [0]), np.nan)

  figure = _drawn(runs, False, f'{runs[0].task.primary.label} by what was sent', sent)
  for axis in figure.axes:
    over_bytes(axis)
  return figure


def spends(run: PlottedRun) -> bool:
  """Whether the records of a run hold an epsilon other than 0."""
  return bool(run.series('epsilon')[1].any())


def by_epsilon(runs: Sequence[PlottedRun]) -> Figure:
  """Draws the first figure of the task over epsilon, as it grows from round to round.

  Args:
    runs: each is a curve of both panels; all of one task. Of one without differential
      privacy there is none. Of many, the best have colors; see `ranked`.

  Returns:
    The figure, with one panel for the deployed and one for the fine-tuned models.
  """

  def spent(run: PlottedRun, rounds: np.ndarray) -> np.ndarray:
    at, values = run.series('epsilon')
    if not spends(run):
      return np.full(len(rounds), np.nan)
    return np.where(np.isin(rounds, at), np.interp(rounds, at, values), np.nan)

  figure = _drawn(runs, False, f'{runs[0].task.primary.label} by privacy', spent)
  for axis in figure.axes:
    axis.set_xlabel('Epsilon')
  return figure


def is_timed(run: PlottedRun) -> bool:
  """Whether the records of a run have simulated seconds."""
  return bool(run.series('simulated_seconds')[1].any())


def by_seconds(runs: Sequence[PlottedRun]) -> Figure:
  """Draws the first figure of the task over simulated seconds on clients' devices.

  Args:
    runs: each is a curve of both panels; all of one task. Of one without a device
      profile there is none. Of many, the best have colors; see `ranked`.

  Returns:
    The figure, with one panel for the deployed and one for the fine-tuned models.
  """

  def passed(run: PlottedRun, rounds: np.ndarray) -> np.ndarray:
    at, seconds = run.series('simulated_seconds')
    if not is_timed(run):
      return np.full(len(rounds), np.nan)
    known = np.isin(rounds, at)
    return np.where(known, np.interp(rounds, at, np.cumsum(seconds)), np.nan)

  what = f'{runs[0].task.primary.label} by time on devices'
  figure = _drawn(runs, False, what, passed)
  for axis in figure.axes:
    axis.set_xlabel('Simulated seconds')
  return figure


def _drawn(
  runs: Sequence[PlottedRun],
  clustered: bool,
  what: str,
  places: Callable[[PlottedRun, np.ndarray], np.ndarray],
) -> Figure:
  """Draws the panels of runs; `places` are those of rounds [R], NaN for none."""
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
        x = places(run, rounds)
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
  found: list[tuple[PlottedRun, str, int | None]] = [
    (runs[i], labels[i], place) for place, i in enumerate(best)
  ]
  name = f'the other {len(others)}'
  # A label that begins with an underscore is in no legend.
  return found + [(runs[i], '_' * (i != others[0]) + name, None) for i in others]


def style_of(place: int | None, rounds: np.ndarray) -> dict[str, Any]:
  """How a curve of `ranked` is drawn."""
  if place is None:
    return {'color': '0.75', 'linewidth': 0.8, 'zorder': 1}
  return curve_style(place, rounds)


def labels_of(runs: Sequence[PlottedRun]) -> list[str]:
  """Distinct labels: where methods repeat, what their configurations differ in."""

  def label(run: PlottedRun) -> str:
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
        in_figure(run.name),
        *(f'{in_figure(k)} {in_figure(v)}' for k, v in details.items()),
      ]
    )

  return [label(run) for run in runs]
