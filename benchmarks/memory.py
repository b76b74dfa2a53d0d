r"""Peak memory of FeSEM(4), stacked and streamed, planned and measured.

  python -m benchmarks.memory --num_clients=1000,10000,100000

Each case runs in a process of its own: initialization and rounds of W4. What is
resident before (imports, devices, data) is taken off the peak; compilation is in it.
The peak is reset after loading, so that copies made and freed while loading count
neither way. On a GPU, `device_peak_mib` is the device's, data included.

`round_mib` is what two rounds take at most beyond the state and the data, which are
there before; `planned_round_mib` is the compiler's count of the same (temporaries and
what does not overwrite the old state), as `experiments.plan` reports it. `held_mib` are
the state and the data.
"""

import ctypes
import gc
import json
import subprocess
import sys
from typing import Any

import jax
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS

_CLIENTS = flags.DEFINE_list('num_clients', ['1000', '10000', '100000'], 'Values of M.')
_WORKLOAD = flags.DEFINE_string('workload', 'W4', 'Of W1 .. W6.')
_STATES = flags.DEFINE_list('client_states', ['stacked', 'streamed'], 'Cases.')
_ONE_CASE = flags.DEFINE_string('one_case', '', 'Used by this program for itself.')
_INIT_CLIENTS = flags.DEFINE_integer('init_clients', 0, 'See FeSEM.')

COLUMNS = (
  'clients',
  'client_state',
  'stack_mib',
  'peak_mib',
  'device_peak_mib',
  'held_mib',
  'round_mib',
  'planned_round_mib',
  'seconds_per_round',
)


def one_case(num_clients: int, client_state: str) -> dict[str, Any]:
  """Peak memory of this process, data excluded."""
  mesh = common.setup()
  workload = WORKLOADS[_WORKLOAD.value]
  local = common.training(workload, mesh)
  train = common.federated(workload, num_clients, mesh)
  size = sum(x.size for x in jax.tree.leaves(common.params_of(workload, local.model)))
  options = {'client_state': client_state, 'init_clients': _INIT_CLIENTS.value}
  jax.block_until_ready(train)
  gc.collect()
  common.reset_peak()
  before = common.status('VmRSS')
  method = common.Method('fesem', options, local, train)
  started = common.status('VmHWM')
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)  # What is free but kept would hide what is taken.
  held = common.status('VmRSS')
  common.reset_peak()
  timed = common.repeat(method.round, times=2)
  after = common.status('VmHWM')
  needs, devices = method.needs, mesh.size
  fresh = needs.outputs - needs.aliased + needs.temporaries
  stats = mesh.devices.flat[0].memory_stats() or {}
  return {
    'clients': num_clients, 'client_state': client_state,
    'stack_mib': 4 * size * num_clients / 2**20, 'before_mib': before / 2**20,
    'peak_mib': (max(started, after) - before) / 2**20,
    'held_mib': method.held() / 2**20, 'round_mib': (after - held) / 2**20,
    'planned_round_mib': devices * fresh / 2**20,
    'device_peak_mib': stats.get('peak_bytes_in_use', 0) / 2**20 or None,
    'seconds_per_round': timed['median_seconds'], 'quiet': timed['quiet'],
  }  # fmt: skip


def main(argv: list[str]) -> None:
  """Runs every case in a process of its own."""
  del argv
  if _ONE_CASE.value:
    clients, state = _ONE_CASE.value.split(',')
    print(json.dumps(one_case(int(clients), state)))
    return
  rows = []
  for clients in _CLIENTS.value:
    for state in _STATES.value:
      command = [
        sys.executable, '-m', 'benchmarks.memory', f'--one_case={clients},{state}',
        f'--workload={_WORKLOAD.value}', f'--init_clients={_INIT_CLIENTS.value}',
      ]  # fmt: skip
      done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
      rows.append(json.loads(done.stdout.splitlines()[-1]))
      print(common.table(rows[-1:], COLUMNS), flush=True)
  print(common.table(rows, COLUMNS))
  common.save('memory', common.setup(), rows)


if __name__ == '__main__':
  app.run(main)
