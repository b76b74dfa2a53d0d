r"""Time per client and round as the number of clients grows.

  python -m benchmarks.scaling --num_clients=1000,10000,100000

FeSEM(4), streamed, on W4; `relative` is to the least number of clients.
"""

from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS

_CLIENTS = flags.DEFINE_list('num_clients', ['1000', '10000', '100000'], 'Values of M.')
_WORKLOAD = flags.DEFINE_string('workload', 'W4', 'Of W1 .. W6.')
_METHOD = flags.DEFINE_enum('method', 'fesem', ['fesem', 'fed_avg'], 'Method.')
_STATE = flags.DEFINE_string('client_state', 'streamed', 'Of FeSEM.')
_INIT_CLIENTS = flags.DEFINE_integer('init_clients', 0, 'See FeSEM.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed passes over the cases.')

COLUMNS = (
  'clients',
  'median_seconds',
  'microseconds_per_client',
  'relative',
  'compile_seconds',
  'quiet',
)


def _ready(num_clients: int, mesh: Any) -> common.Method:
  """The method on so many clients."""
  workload = WORKLOADS[_WORKLOAD.value]
  options: dict[str, Any] = {}
  if _METHOD.value == 'fesem':
    options = {'client_state': _STATE.value, 'init_clients': _INIT_CLIENTS.value}
  local = common.training(workload, mesh)
  train = common.federated(workload, num_clients, mesh)
  return common.Method(_METHOD.value, options, local, train)


def main(argv: list[str]) -> None:
  """Runs the benchmark; passes over the cases alternate."""
  del argv
  mesh = common.setup()
  cases = {n: _ready(n, mesh) for n in sorted(map(int, _CLIENTS.value))}
  timings: dict[int, list[dict[str, Any]]] = {n: [] for n in cases}
  for _ in range(_ROUNDS.value):
    for n, case in cases.items():
      timings[n].append(common.repeat(case.round, times=1))
  rows: list[dict[str, Any]] = []
  for n, case in cases.items():
    quiet = [t['median_seconds'] for t in timings[n] if t['quiet']]
    median = float(np.median(quiet or [t['median_seconds'] for t in timings[n]]))
    each = 1e6 * median / n
    first = rows[0]['microseconds_per_client'] if rows else each
    rows.append(
      {
        'clients': n,
        'median_seconds': median,
        'method': _METHOD.value,
        'microseconds_per_client': each,
        'relative': each / first,
        'compile_seconds': case.compile_seconds,
        'quiet': len(quiet),
      }
    )
  print(common.table(rows, COLUMNS))
  common.save('scaling', mesh, rows)


if __name__ == '__main__':
  app.run(main)
