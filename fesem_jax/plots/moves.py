"""Clients that move from cluster to cluster."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.plots.runs import PlottedRun
from fesem_jax.plots.style import STYLE
from fesem_jax.run.results.moves import moves, sizes_by_round
from fesem_jax.utils.display import in_figure
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.palette import color_of

_HALF = 0.03  # Of the width of a block; the rounds that are shown are 1 apart.
_APART = 0.045  # Least distance of two names, of the height.


def cluster_flows(run: PlottedRun) -> Figure:
  """Draws how many clients move from cluster to cluster, as bands between rounds.

  Clients that move have strong bands in the color of the cluster that they leave, those
  that stay pale ones. Of many rounds, those are shown between which as many clients
  move.

  Args:
    run: with a history of its clients (`callbacks.ClientHistory`).

  Returns:
    The figure.

  Raises:
    UserError: without such a history, or if no client moves.
  """
  flows = flows_of(run)
  if flows is None:
    raise UserError(f'{run.workdir}: no moves; client_metrics_every=1 records them')
  return drawn_flows(run, *flows)


def flows_of(run: PlottedRun) -> tuple[dict[str, Any], list[str]] | None:
  """The flows of a run and the names of its clusters; None where none is known."""
  records = [r for r in run.history if r.get('cluster_sizes')]
  if not records:
    return None
  sizes, places = sizes_by_round(records)
  held = moves(run.workdir, places)
  return (
    None if held is None or held['flows'] is None else (held['flows'], sizes['names'])
  )


def drawn_flows(run: PlottedRun, flows: dict[str, Any], names: list[str]) -> Figure:
  """The figure of what `flows_of` found."""
  with plt.rc_context(STYLE | {'axes.grid': False}):
    figure, axis = plt.subplots(figsize=(8.4, 3.8), layout='constrained')
    t = np.linspace(0, 1, 33)
    share = t * t * (3 - 2 * t)
    for place, source, target, clients, _, start, end in flows['links']:
      low = start + share * (end - start)
      x = place + _HALF + t * (1 - 2 * _HALF)
      alpha = 0.2 if source == target else 0.75
      axis.fill_between(
        x, low, low + clients, color=color_of(source), alpha=alpha, linewidth=0
      )
    last = len(flows['rounds']) - 1
    blocks = zip(flows['sizes'], flows['lows'], strict=True)
    for place, (sizes, lows) in enumerate(blocks):
      colors = [color_of(k) for k in range(len(sizes))]
      axis.bar([place] * len(sizes), sizes, 2 * _HALF, lows, color=colors)
      if place in (0, last):
        _name(axis, place, sizes, lows, names)
    axis.set_xlim(-2 * _HALF, last + 2 * _HALF)
    axis.set_ylim(0, None)
    axis.set_xticks(range(last + 1), flows['rounds'])
    axis.set_yticks([])
    axis.spines[['left', 'bottom']].set_visible(False)
    axis.set_xlabel('Round')
    title = f'{in_figure(run.name)}: clients that move between clusters'
    axis.set_title(title, fontsize='medium')
  return figure


def _name(
  axis: Axes, place: int, sizes: list[int], lows: list[float], names: list[str]
) -> None:
  """Names the blocks at one end where they have room, and says their clients."""
  apart, before = _APART * (max(lows) + sizes[-1]), -np.inf
  side, shift = ('left', 1.5 * _HALF) if place else ('right', -1.5 * _HALF)
  for size, low, name in zip(sizes, lows, names, strict=True):
    if size and low + size / 2 - before >= apart:
      before = low + size / 2
      called = f'cluster {name}' if name.isdecimal() else name
      text = f'{called}: {size} client{"s" * (size != 1)}'
      axis.text(place + shift, before, text, ha=side, va='center')
