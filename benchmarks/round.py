r"""Seconds of a whole round of each method, beside FedAvg on the same cohort.

  python -m benchmarks.round --workloads=W1,W3 --methods='fed_avg,fesem(4)'

Each round of a method follows one of FedAvg; the ratio is the median over these
pairs, and its quartiles say how far to trust it; pairs during which other processes
used the cores are dropped. FedCluster compares clients in one
round of five, from round 10 on; these rounds are not here. `state_kib` is the state of
the method, divided by the clients.
"""

from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS, Workload
from experiments.methods import parse_method
from fesem_jax import algorithms
from fesem_jax.utils.errors import UserError

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
  'state_kib',
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
  local = common.training(workload, mesh)
  local = local._replace(schedule=local.schedule._replace(epochs=_EPOCHS.value))
  ready = common.Method(
    name, options, local, common.federated(workload, num_clients, mesh)
  )
  if _APART.value and options.get('num_clusters', 1) > 1:
    ready.part_centers()
  return ready


def measure(name: str, methods: list[str], mesh: Any) -> list[dict[str, Any]]:
  """One row for each method on one work load; no two of them are in memory at once."""
  workload = WORKLOADS[name]
  few = workload.network != 'mlp'
  num_clients = _CLIENTS.value or (40 if few else workload.num_clients)
  case = {
    'workload': name, 'clients': num_clients, 'streamed': _STREAMED.value,
    'apart': _APART.value, 'local_epochs': _EPOCHS.value,
  }  # fmt: skip
  fed_avg = _ready('fed_avg', workload, num_clients, mesh)
  rows = []
  for text in methods:
    row = case | {'method': text}
    try:
      row |= _paired(fed_avg, _ready(text, workload, num_clients, mesh), num_clients)
    except UserError as e:
      row['refused'] = str(e)
    rows.append(row)
    print(common.table(rows[-1:], COLUMNS), flush=True)
  return rows


def _paired(
  fed_avg: common.Method, own: common.Method, num_clients: int
) -> dict[str, Any]:
  """Rounds of FedAvg and of a method by turns, and the memory of the method."""
  methods = fed_avg, own
  for method in methods:  # The first round touches new memory.
    jax.block_until_ready(method.round())
  calls = [common.calls_to_time(method.round) for method in methods]
  pairs: list[list[float]] = []
  dropped = 0
  while len(pairs) < _ROUNDS.value and len(pairs) + dropped < 2 * _ROUNDS.value:
    timed = [
      common.repeat(method.round, times=1, warmups=0, calls=count)
      for method, count in zip(methods, calls, strict=True)
    ]
    if all(t['quiet'] for t in timed):
      pairs.append([t['median_seconds'] for t in timed])
    else:
      dropped += 1
  row: dict[str, Any] = {
    'pairs': len(pairs),
    'dropped': dropped,
    'state_kib': own.state_bytes() / num_clients / 2**10,
  }
  if pairs:
    base, seconds = np.array(pairs).T
    low, middle, high = np.percentile(seconds / base, (25, 50, 75)).tolist()
    row |= {
      'seconds': float(np.median(seconds)), 'fed_avg_seconds': float(np.median(base)),
      'ratio': middle, 'low': low, 'high': high,
    }  # fmt: skip
  return row


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
