r"""Seconds of a whole round of each method, beside FedAvg on the same cohort.

  python -m benchmarks.round --workloads=W1,W3 --methods='fed_avg,fesem(4)'

Each round of a method follows one of FedAvg; the ratio is the median over these
pairs, and its quartiles say how far to trust it; pairs during which other processes
used the cores are dropped. FedCluster compares clients in one
round of five, from round 10 on; these rounds are not here.
"""

from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS, Workload
from experiments.methods import parse_method
from fesem_jax import algorithms

COLUMNS = (
  'workload',
  'clients',
  'method',
  'seconds',
  'ratio',
  'low',
  'high',
  'pairs',
  'dropped',
)

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
_APART = flags.DEFINE_bool(
  'apart',
  False,
  'Whether methods with several centers start from random models: no client then comes '
  'near to another center, as in clustered data after a few rounds.',
)
_STREAMED = flags.DEFINE_bool(
  'streamed', False, 'Whether methods with --client_state stream.'
)


def _ready(text: str, workload: Workload, num_clients: int, mesh: Any) -> common.Method:
  """A method NAME or NAME(K) on a work load."""
  if '=' in text:
    raise app.UsageError(f'--methods: {text} is not NAME or NAME(K).')
  name, options = parse_method(text)
  if _STREAMED.value and 'client_state' in algorithms.options(name):
    options |= {'client_state': 'streamed'}
  local = common.training(workload, num_clients, mesh)
  local = local._replace(schedule=local.schedule._replace(epochs=_EPOCHS.value))
  ready = common.Method(
    name, options, local, common.federated(workload, num_clients, mesh)
  )
  if _APART.value and options.get('num_clusters', 1) > 1:
    ready.part_centers()
  return ready


def measure(name: str, methods: list[str], mesh: Any) -> list[dict[str, Any]]:
  """One row for each method on one work load."""
  workload = WORKLOADS[name]
  few = workload.network != 'mlp'
  num_clients = _CLIENTS.value or (40 if few else workload.num_clients)
  ready = {m: _ready(m, workload, num_clients, mesh) for m in ['fed_avg', *methods]}
  for warm in ready.values():  # The first round touches new memory.
    jax.block_until_ready(warm.round())
  calls = {m: common.calls_to_time(ready[m].round) for m in ready}
  pairs: dict[str, list[list[float]]] = {m: [] for m in methods}
  dropped = dict.fromkeys(methods, 0)
  for _ in range(2 * _ROUNDS.value):
    for method in methods:
      if len(pairs[method]) == _ROUNDS.value:
        continue
      timed = [
        common.repeat(ready[m].round, times=1, warmups=0, calls=calls[m])
        for m in ('fed_avg', method)
      ]
      if all(t['quiet'] for t in timed):
        pairs[method].append([t['median_seconds'] for t in timed])
      else:
        dropped[method] += 1
  case = {
    'workload': name, 'clients': num_clients, 'streamed': _STREAMED.value,
    'apart': _APART.value, 'local_epochs': _EPOCHS.value,
  }  # fmt: skip
  rows = []
  for method, kept in pairs.items():
    row = case | {'method': method, 'pairs': len(kept), 'dropped': dropped[method]}
    if kept:
      base, own = np.array(kept).T
      low, middle, high = np.percentile(own / base, (25, 50, 75)).tolist()
      row |= {
        'seconds': float(np.median(own)), 'fed_avg_seconds': float(np.median(base)),
        'ratio': middle, 'low': low, 'high': high,
      }  # fmt: skip
    rows.append(row)
  return rows


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  mesh = common.setup()
  rows = []
  for name in _WORKLOADS.value:
    rows += measure(name, [m for m in _METHODS.value if m != 'fed_avg'], mesh)
    print(common.table(rows, COLUMNS), flush=True)
  common.save('round_streamed' if _STREAMED.value else 'round', mesh, rows)


if __name__ == '__main__':
  app.run(main)
