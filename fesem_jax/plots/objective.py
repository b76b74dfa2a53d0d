"""Eq. 6 over rounds, by the step of a round after which it is measured."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE, curve_style, legend_below, over_rounds
from fesem_jax.utils.display import in_figure

_STEPS = {
  'Local step': 'objective_local_step',
  'E-step': 'objective_e_step',
  'M-step': 'objective',
}
_LINES = ('-', '--', '-')  # The E-step often changes nothing and lies on the first.

_WIDE = 30  # Ratio of values from which on an axis is logarithmic.


def objective(run: PlottedRun) -> Figure:
  """Draws Eq. 6 after each step of a round, and what each step adds to it or takes.

  Args:
    run: with `track_objective`.

  Returns:
    The figure: on the left the values, on the right the changes.
  """
  series = {
    step: dict(zip(*run.series(key), strict=True)) for step, key in _STEPS.items()
  }
  rounds = [r for r in series['M-step'] if r in series['Local step']]
  values = {s: np.array([of_step[r] for r in rounds]) for s, of_step in series.items()}
  # A round begins with what the M-step of the round before left.
  before_step = [series['M-step'].get(r - 1, np.nan) for r in rounds]
  before = {
    'Local step': np.array(before_step),
    'E-step': values['Local step'],
    'M-step': values['E-step'],
  }
  with plt.rc_context(STYLE):
    figure, (levels, changes) = plt.subplots(
      1, 2, figsize=(9, 3.6), layout='constrained'
    )
    for i, step in enumerate(_STEPS):
      style = {'linestyle': _LINES[i], **curve_style(i, np.array(rounds), 20)}
      levels.plot(rounds, values[step], label=step, **style)
      changes.plot(rounds, values[step] - before[step], **style)
    _scale(levels, np.concatenate(list(values.values())))
    changes.axhline(0, color='black', linewidth=0.8)
    changes.set_ylabel('Change of Eq. 6')
    changes.set_title('What each step adds (+) or takes (-)')
    sizes = np.abs([values[s] - before[s] for s in _STEPS])
    largest = sizes[np.isfinite(sizes)].max(initial=0)
    if largest > 0:  # Steps that change little would be invisible beside others.
      linear = 10 ** np.floor(np.log10(largest) - 1)
      changes.set_yscale('symlog', linthresh=linear, linscale=1.0)
    for axis in (levels, changes):
      over_rounds(axis)
    figure.suptitle(f'{in_figure(run.name)}: Eq. 6 over rounds')
    legend_below(figure, levels)
  return figure


def _scale(axis: Axes, values: np.ndarray) -> None:
  """Labels the axis of values, and makes it logarithmic where they differ widely."""
  axis.set_title('Eq. 6 after each step of a round')
  axis.set_ylabel('Mean squared distance to center')
  if 0 < _WIDE * values.min() < values.max():
    axis.set_yscale('log')
  else:
    axis.set_ylim(bottom=0)
