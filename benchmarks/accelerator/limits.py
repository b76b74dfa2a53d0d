"""Part f: how many clients fit, and what is said when they no longer do.

FeSEM(4) on W2 (1.2 M parameters, 4.8 MB a model), ten examples a client: two smaller
federations give the memory of each client by the compiler's count, which says where
memory ends (`predicted`); a federation just below, and one above, are tried. Streamed
and offloaded models take little of the device's memory and are tried beside them, so
seconds are not those of a device of one's own.
"""

import gc
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import jax

from benchmarks import common
from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Row, Watch
from benchmarks.workloads import WORKLOADS
from fesem_jax.core import sharding
from fesem_jax.utils.errors import UserError

# Where clients' models are -> the federations that are tried before the predicted ones.
_TRIED = {'stacked': (1000, 2000), 'streamed': (50_000,), 'offloaded': (4000,)}


def measure(watch: Watch) -> None:
  """Tries each place of clients' models in a process of its own, all at once."""
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  if shutil.which('nvidia-smi'):  # A quarter of the time to compile; see docs/speed.md.
    flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_gpu_enable_triton_gemm=false'
    os.environ['XLA_FLAGS'] = flags.strip()
  states = ['stacked'] if watch.small else list(_TRIED)
  with ThreadPoolExecutor(len(states)) as threads:
    for attempt in [threads.submit(_try, state, watch) for state in states]:
      attempt.result()


def _try(state: str, watch: Watch) -> None:
  """Says the rows of clients' models kept so."""
  if not watch.has(15 * (not watch.small), client_state=state):
    return
  process, pipe = measuring.started(_state, state, watch.deadline, watch.small)
  for row in measuring.rows_of(process, pipe, watch, client_state=state):
    watch.say({'client_state': state} | row)


def _state(pipe: Connection, state: str, end: float, small: bool) -> None:
  measuring.setup()
  watch = Watch(pipe.send, end, small, {}, '')
  counts = (16, 24) if small else _TRIED[state]
  rows = [watch.tried(lambda: _row(n, state, watch), clients=n) for n in counts]  # noqa: B023
  if small or None in rows or state != 'stacked' or any('refused' in r for r in rows):
    return
  few, many = rows
  device = measuring.chip().devices.flat[0]
  room = sharding.memory(device)
  size = (many['planned_bytes'] - few['planned_bytes']) / (counts[1] - counts[0])
  limit = int(counts[1] + ((room or 0) - many['planned_bytes']) / size)
  watch.say({'predicted': limit, 'bytes_of_client': size, 'bytes_of_device': room})
  for share in (0.97, 1.1):
    count = int(share * limit)
    if watch.has(12, clients=count):
      watch.tried(lambda: _row(count, state, watch), clients=count)  # noqa: B023


def _row(clients: int, state: str, watch: Watch) -> Row:
  """Says what a federation of so many clients takes, or why it is refused."""
  gc.collect()
  mesh = measuring.chip()
  workload = WORKLOADS['W2']._replace(examples=10)
  local = common.training(workload, mesh)
  options: dict[str, Any] = {'num_clusters': 4, 'client_state': state}
  options['init_clients'] = min(100, clients)
  row: Row = {'clients': clients}
  began = time.time()
  try:
    train = common.federated(workload, clients, mesh)
    ready = common.Method('fesem', options, local, train)
    timing = measuring.timed(ready.round, most=1.0, repeats=3)
  except (UserError, jax.errors.JaxRuntimeError) as e:
    e.__traceback__ = None
    row |= {'refused': f'{type(e).__name__}: {e}'[:600]}
  else:
    stats = mesh.devices.flat[0].memory_stats() or {}
    row |= {
      'planned_bytes': ready.needs.peak, 'host_bytes': ready.needs.on_host,
      'state_bytes': ready.state_bytes(),
      'chunk': min(local.clients_per_chunk, clients),
      'peak_bytes': stats.get('peak_bytes_in_use'), **timing,
    }  # fmt: skip
  row['all_seconds'] = time.time() - began
  watch.say(row)
  return row
