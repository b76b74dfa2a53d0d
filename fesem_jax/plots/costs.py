"""The first metric of the task over the bytes sent, of one run or several."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fesem_jax.plots.curves import panels_of, ranked, style_of
from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE, legend_below
from fesem_jax.results import costs
from fesem_jax.utils.display import in_figure


def sends(run: PlottedRun) -> bool:
  """Whether the records of a run count bytes sent."""
  return any(costs.gigabytes(run.history)[1])


def by_gigabytes(runs: Sequence[PlottedRun]) -> Figure:
  """Draws the first figure of the task over 10^9 bytes sent, both ways together.

  Args:
    runs: each is a curve of both panels; all of one task. Of one that sends nothing,
      or does not say what, there is none. Of many, the best have colors; see
      `curves.ranked`.

  Returns:
    The figure, with one panel for the fine-tuned and one for the deployed models.
  """
  task, curves = runs[0].task, ranked(runs)
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), layout='constrained')
    axes[1].sharey(axes[0])
    for axis, (label, path, factor) in zip(axes, panels_of(task, False), strict=True):
      for run, name, place in curves:
        at, sent = costs.gigabytes(run.history)
        rounds, values = run.series(*path)
        shown = np.isin(rounds, at) & sends(run)
        if shown.any():
          x = np.interp(rounds[shown], at, sent)
          style = style_of(place, rounds[shown])
          axis.plot(x, factor * values[shown], label=name, **style)
      axis.set_xlabel('Sent to and from clients (GB)')
      axis.set_title(label, fontsize=10)
    of = {run.dataset for run in runs} if len(runs) > 1 else {runs[0].name}
    which = in_figure(of.pop()) if len(of) == 1 else f'{len(runs)} runs'
    figure.suptitle(f'{which}: {task.primary.label} by what was sent')
    if len(runs) > 1:
      legend_below(figure, axes[0])
  return figure
