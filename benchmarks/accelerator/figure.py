"""Draws client steps a second of this package and of its peers on one accelerator.

python -m benchmarks.accelerator.figure RESULTS.json docs/figures/gpu.png
"""

import json
import pathlib
import sys
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fesem_jax.plots.style import STYLE, color_of, save

_WORKLOADS = {
  'W1': 'W1\nLEAF CNN', 'W2': 'W2\nEMNIST CNN', 'W3': 'W3\nMLP',
  'W7': 'W7\nResNet-8', 'W8': 'W8\nLSTM',
}  # fmt: skip
OURS = 'fesem_jax'
_SERIES = {
  OURS: OURS,
  'stacked (vmap), CUDA graph': 'PyTorch, stacked (vmap), CUDA graph',
  'stacked (vmap)': 'PyTorch, stacked (vmap)',
  'loop, CUDA graph': 'PyTorch, loop, a CUDA graph for each client',
  'loop': 'PyTorch, loop',
  'jit': 'FedJAX',
}


def rates(parts: dict[str, Any]) -> dict[str, dict[str, float]]:
  """Steps a second in float32 by series and work load, of a device's parts."""
  by_series: dict[str, dict[str, float]] = {series: {} for series in _SERIES}
  for row in parts['c']['rows']:
    if row.get('default') and 'steps_per_second' in row:
      by_series[OURS][row['workload']] = row['steps_per_second']
  of_peers = [rows for name, rows in parts.items() if name.partition(',')[0] == 'd']
  for row in (row for part in of_peers for row in part['rows']):
    equal = 'steps_per_second' in row and 'unequal' not in row
    if equal and row['precision'] == 'highest' and row['arrangement'] in by_series:
      by_series[row['arrangement']][row['workload']] = row['steps_per_second']
  return by_series


def draw(device: str, by_series: dict[str, dict[str, float]]) -> Figure:
  """Groups of bars, on a logarithmic axis."""
  with plt.rc_context(STYLE):
    figure, axis = plt.subplots(figsize=(8, 3.8), layout='constrained')
    width = 0.8 / len(by_series)
    for i, (series, of_workloads) in enumerate(by_series.items()):
      places = np.arange(len(_WORKLOADS)) + (i - (len(by_series) - 1) / 2) * width
      heights = [of_workloads.get(name, np.nan) for name in _WORKLOADS]
      axis.bar(places, heights, width, label=_SERIES[series], color=color_of(i))
    axis.set_yscale('log')
    axis.set_ylabel('client steps a second')
    axis.set_xticks(np.arange(len(_WORKLOADS)), list(_WORKLOADS.values()))
    axis.grid(axis='x', visible=False)
    axis.set_title(f'{device}, float32')
    axis.legend(fontsize='small', loc='upper right')
  return figure


def main(results: str, path: str) -> None:
  """Draws the results of a device."""
  held = json.loads(pathlib.Path(results).read_text())
  for written in save(draw(held['device'], rates(held['parts'])), pathlib.Path(path)):
    print(written)


if __name__ == '__main__':
  main(*sys.argv[1:])
