"""Accuracy and the objective over rounds, of one run or several."""

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.figure import Figure

from fesem_jax.display import in_figure
from fesem_jax.plots.runs import Run
from fesem_jax.plots.style import MARKERS, STYLE, color_of, legend_below

_FEW = 4  # Runs whose legend fits beside their curves.


def convergence(runs: Sequence[Run]) -> Figure:
  """Draws accuracy and Eq. 6 over rounds, several runs in one figure (Fig. 3).

  Args:
    runs: each is a curve of every panel.

  Returns:
    The figure; it has a panel for Eq. 6 if any run has clusters.
  """
  clustered = any(len(run.series('objective')[0]) for run in runs)
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(
      1, 2 + clustered, figsize=(4.2 * (2 + clustered), 3.6), squeeze=False
    )
    panels = [
      (('finetuned', 'micro_accuracy'), 'Fine-tuned micro accuracy (%)', 100),
      (('deployed', 'micro_accuracy'), 'Deployed micro accuracy (%)', 100),
      (('objective',), 'Eq. 6: mean squared distance to center', 1),
    ]
    for axis, (path, label, factor) in zip(axes[0], panels, strict=False):
      for i, (run, name) in enumerate(zip(runs, _labels(runs), strict=True)):
        rounds, values = run.series(*path)
        if len(rounds):
          axis.plot(
            rounds,
            factor * values,
            color=color_of(i),
            label=name,
            markersize=4,
            marker=MARKERS[i % len(MARKERS)],
            markevery=max(1, len(rounds) // 12),
            clip_on=False,  # Or markers at the ends would be cut off.
          )
      axis.set_xlabel('Round')
      axis.set_ylabel(label)
      axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if clustered:
      axes[0, 2].set_ylim(bottom=0)
    figure.tight_layout()
    if len(runs) <= _FEW:
      axes[0, 0].legend()
    else:  # They would hide the curves.
      legend_below(figure, axes[0, 0])
  return figure


def _labels(runs: Sequence[Run]) -> list[str]:
  """Distinct labels: where methods repeat, what their configurations differ in."""

  def label(run: Run) -> str:
    same = [other.config for other in runs if other.name == run.name]

    def differs(k):
      return any(c.get(k) != run.config[k] for c in same)

    details = {k: v for k, v in run.config.items() if differs(k)}
    return ', '.join(
      [
        in_figure(run.name),
        *(f'{in_figure(k)} {in_figure(v)}' for k, v in details.items()),
      ]
    )

  return [label(run) for run in runs]
