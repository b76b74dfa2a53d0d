r"""Seconds of a whole round of each method, beside FedAvg on the same cohort.

  python -m benchmarks.round --workloads=W1,W3 --methods='fed_avg,fesem(4)'

Each round of a method follows one of FedAvg; the ratio is the median over these
pairs, and its quartiles say how far to trust it. FedCluster compares clients in one
round of five, from round 10 on; these rounds are not here.
"""

from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS, Workload
from experiments.compare import parse_method
from fesem_jax import algorithms, sharding

COLUMNS = ('workload', 'clients', 'method', 'seconds', 'ratio', 'low', 'high')

_ALL = ','.join(
  f'{name}(4)' if 'num_clusters' in algorithms.options(name) else name
  for name in algorithms.METHODS
)

_WORKLOADS = flags.DEFINE_list('workloads', ['W1', 'W3'], 'Of W1 .. W5.')
_METHODS = flags.DEFINE_list('methods', _ALL.split(','), 'NAME or NAME(K).')
_CLIENTS = flags.DEFINE_integer(
  'num_clients', 0, 'Clients; 0: as the work load says, but 40 for W1, W2 and W5.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds of each method.')
_EPOCHS = flags.DEFINE_integer('local_epochs', 5, 'Local epochs of a round.')
_STREAMED = flags.DEFINE_bool(
  'streamed', False, 'Whether methods with --client_state stream.'
)


def _ready(text: str, workload: Workload, num_clients: int, mesh: Any) -> common.Method:
  """A method NAME or NAME(K) on a work load."""
  name, options = parse_method(text)
  if _STREAMED.value and 'client_state' in algorithms.options(name):
    options |= {'client_state': 'streamed'}
  local = common.training(workload, num_clients, mesh)
  local = local._replace(schedule=local.schedule._replace(epochs=_EPOCHS.value))
  return common.Method(
    name, options, local, common.federated(workload, num_clients, mesh)
  )


def measure(name: str, methods: list[str], mesh: Any) -> list[dict[str, Any]]:
  """One row for each method on one work load."""
  workload = WORKLOADS[name]
  few = workload.network != 'mlp'
  num_clients = _CLIENTS.value or (40 if few else workload.num_clients)
  ready = {m: _ready(m, workload, num_clients, mesh) for m in ['fed_avg', *methods]}
  base: list[float] = []
  seconds: dict[str, list[float]] = {m: [] for m in methods}
  ratios: dict[str, list[float]] = {m: [] for m in methods}
  for _ in range(_ROUNDS.value):
    for method in methods:
      pair = [
        common.repeat(ready[m].round, times=1, warmups=0)['median_seconds']
        for m in ('fed_avg', method)
      ]
      base.append(pair[0])
      seconds[method].append(pair[1])
      ratios[method].append(pair[1] / pair[0])
  case = {
    'workload': name, 'clients': num_clients, 'streamed': _STREAMED.value,
    'local_epochs': _EPOCHS.value,
  }  # fmt: skip
  rows = [case | {'method': 'fed_avg', 'seconds': float(np.median(base)), 'ratio': 1.0}]
  for method in methods:
    low, middle, high = np.percentile(ratios[method], (25, 50, 75)).tolist()
    rows.append(case | {
      'method': method, 'seconds': float(np.median(seconds[method])),
      'ratio': middle, 'low': low, 'high': high,
    })  # fmt: skip
  return rows


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  sharding.setup_devices()
  mesh = sharding.client_mesh()
  rows = []
  for name in _WORKLOADS.value:
    rows += measure(name, [m for m in _METHODS.value if m != 'fed_avg'], mesh)
    print(common.table(rows, COLUMNS), flush=True)
  common.save('round_streamed' if _STREAMED.value else 'round', mesh, rows)


if __name__ == '__main__':
  app.run(main)
