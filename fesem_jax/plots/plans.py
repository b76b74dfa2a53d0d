"""What runs need by the number of chips: memory of each, and time of a round."""

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from fesem_jax.plots.style import MARKERS, STYLE, color_of, legend_below

_GIB = 2**30


def by_chips(plans: Sequence[dict[str, Any]]) -> Figure:
  """Draws memory and time by chips, a curve for each kind and number of clients.

  Args:
    plans: as `experiments.plan` writes them to JSON; those without a time, of devices
      whose speed is not known, have no curve in the second panel, which is left out if
      there is none.
  """
  curves: dict[tuple[str, int], list[dict[str, Any]]] = {}
  for plan in plans:
    curves.setdefault((plan['device'], plan['num_clients']), []).append(plan)
  kinds = list(dict.fromkeys(device for device, _ in curves))
  counts = sorted({plan['num_devices'] for plan in plans})
  with plt.rc_context(STYLE):
    panels = 1 + any(plan['seconds_per_round'] is not None for plan in plans)
    figure, axes = plt.subplots(1, panels, figsize=(4.6 * panels, 3.8), squeeze=False)
    memory, seconds = axes[0][0], axes[0][-1]
    for i, ((device, clients), of_curve) in enumerate(curves.items()):
      of_curve = sorted(of_curve, key=lambda plan: plan['num_devices'])
      style: dict[str, Any] = {
        'color': color_of(i),
        'marker': MARKERS[i % len(MARKERS)],
        'markersize': 5,
      }
      chips = [plan['num_devices'] for plan in of_curve]
      peaks = [plan['peak_bytes'] / _GIB for plan in of_curve]
      memory.plot(chips, peaks, label=f'{device}, {clients:,} clients', **style)
      timed = [plan for plan in of_curve if plan['seconds_per_round'] is not None]
      if timed:
        chips = [plan['num_devices'] for plan in timed]
        seconds.plot(chips, [plan['seconds_per_round'] for plan in timed], **style)
    for i, kind in enumerate(kinds):
      held = next(p['chip_bytes'] for p in plans if p['device'] == kind)
      if held is not None:
        memory.axhline(held / _GIB, color='0.4', linestyle=('--', ':', '-.')[i % 3])
        memory.annotate(
          f'a {kind} has {held / _GIB:.0f} GiB',
          (counts[0], held / _GIB),
          textcoords='offset points',
          xytext=(0, 3),
          fontsize=8,
          color='0.4',
        )
    _axis(memory, counts, 'memory that each chip needs [GiB]')
    if panels == 2:
      _axis(seconds, counts, 'seconds of a round, at the least')
    legend_below(figure, memory)
    figure.tight_layout()
  return figure


def _axis(axis: Axes, counts: Sequence[int], title: str) -> None:
  axis.set_xscale('log', base=2)
  axis.set_yscale('log')
  axis.set_xticks(counts, [str(count) for count in counts])
  low, high = axis.get_ylim()
  axis.set_ylim(low / 1.5, high * 1.5)  # With a mark or two, however near they lie.
  axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
  axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f'{y:g}'))
  axis.minorticks_off()
  axis.set_xlabel('chips')
  axis.set_title(title, fontsize=10)
