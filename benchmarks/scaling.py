r"""Time per client and round as the number of clients grows.

  python -m benchmarks.scaling --num_clients=1000,10000,100000

FeSEM(4), streamed, on W4; `relative` is to the least number of clients.
"""

from typing import Any

import jax
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS
from fesem_jax import algorithms, sharding

_CLIENTS = flags.DEFINE_list('num_clients', ['1000', '10000', '100000'], 'Values of M.')
_WORKLOAD = flags.DEFINE_string('workload', 'W4', 'Of W1 .. W5.')
_METHOD = flags.DEFINE_enum('method', 'fesem', ['fesem', 'fed_avg'], 'Method.')
_STATE = flags.DEFINE_string('client_state', 'streamed', 'Of FeSEM.')
_INIT_CLIENTS = flags.DEFINE_integer('init_clients', 0, 'See FeSEM.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed passes over the cases.')

COLUMNS = ('clients', 'median_seconds', 'microseconds_per_client', 'relative',
           'compile_seconds')  # fmt: skip


class _Case:
  """A number of clients, ready for another round."""

  def __init__(self, num_clients: int, mesh: Any):
    workload = WORKLOADS[_WORKLOAD.value]
    options: dict[str, Any] = {}
    if _METHOD.value == 'fesem':
      options = {'client_state': _STATE.value, 'init_clients': _INIT_CLIENTS.value}
    local = common.training(workload, num_clients, mesh)
    algorithm = algorithms.build(_METHOD.value, local, **options)
    self.num_clients = num_clients
    self._key = jax.random.key(0)
    self._train = common.federated(workload, num_clients, mesh)
    self._state = jax.jit(algorithm.init)(self._key, self._train)
    cohort = common.everyone(self._train)
    self._cohort = cohort
    step = jax.jit(algorithm.step, donate_argnums=0)
    arguments = (self._state, self._train, cohort, self._key)
    self._step, self.compile_seconds = common.timed_compile(step, *arguments)

  def round(self) -> Any:
    self._state, info = self._step(self._state, self._train, self._cohort, self._key)
    return info


def main(argv: list[str]) -> None:
  """Runs the benchmark; passes over the cases alternate."""
  del argv
  sharding.setup_devices()
  mesh = sharding.client_mesh()
  cases = [_Case(int(n), mesh) for n in sorted(_CLIENTS.value, key=int)]
  seconds: dict[int, list[float]] = {c.num_clients: [] for c in cases}
  for _ in range(_ROUNDS.value):
    for case in cases:
      # Short rounds are repeated more often.
      times = max(1, cases[-1].num_clients // case.num_clients // 10)
      timed = common.repeat(case.round, times, warmups=not seconds[case.num_clients])
      seconds[case.num_clients].append(timed['median_seconds'])
  rows: list[dict[str, Any]] = []
  for case in cases:
    median = sorted(seconds[case.num_clients])[_ROUNDS.value // 2]
    each = 1e6 * median / case.num_clients
    first = rows[0]['microseconds_per_client'] if rows else each
    rows.append({
      'clients': case.num_clients, 'median_seconds': median, 'method': _METHOD.value,
      'microseconds_per_client': each, 'relative': each / first,
      'compile_seconds': case.compile_seconds,
    })  # fmt: skip
  print(common.table(rows, COLUMNS))
  common.save('scaling', mesh, rows)


if __name__ == '__main__':
  app.run(main)
