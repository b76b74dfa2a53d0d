"""Part c: SGD steps of one client a second, by how clients are trained.

Each row is local training of all clients from one model, and their mean. `of_peak` is
the time of the counted products (`floor.operations`) at the measured peak of the row's
precision over the measured time; `of_bandwidth` that of the bytes that plain SGD must
move if clients share none (`floor.bytes_moved`). `program_flops` and `program_bytes`
are XLA's counts, in which the body of a loop counts once. `default` marks what a run
does if nothing is chosen; the last rows name the best found beside it.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from benchmarks import common, floor
from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Row, Watch
from benchmarks.workloads import WORKLOADS, Workload
from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import sharding, tree
from fesem_jax.core.batching import num_steps
from fesem_jax.core.local_training import LocalTraining, Precision, SharedStart


class Case(NamedTuple):
  """Training of the clients of a work load."""

  workload: str
  together: int = 0  # clients side by side; 0 is the default
  precision: Precision = 'highest'
  shared_start: SharedStart = 'auto'

  @property
  def is_default(self) -> bool:
    return self == Case(self.workload)


# Clients of the default case, if not 100.
_CLIENTS = {'W3': 1200, 'W4': 10_000, 'W7': 100}
_TOGETHER = (8, 64, 1, 512)
_ORDER = ('W1', 'W3', 'W7', 'W8', 'W2', 'W4', 'W5', 'W6')


def stages(small: bool) -> list[list[Case]]:
  """Cases in the order of their worth; those of a stage are compiled together."""
  if small:
    return [[Case('W4'), Case('W4', 8), Case('W4', 8, precision='default')]]
  main = _ORDER[:4]
  rounded = [Case(w, precision='default') for w in _ORDER[:5]]
  of_start = [Case('W1', shared_start='off'), Case('W3', shared_start='on')]
  by_chunk = [[Case(w, c) for w in main] for c in _TOGETHER]
  rest = [[Case(w, c) for w in _ORDER[4:]] for c in _TOGETHER]
  return [
    [Case(w) for w in _ORDER[:6]],
    rounded,
    of_start,
    *by_chunk,
    [Case(w) for w in _ORDER[6:]],
    *rest,
  ]


def measure(watch: Watch) -> None:
  """Times every case that there is time for."""
  measuring.setup()
  mesh, data = measuring.chip(), _Data()
  rows: list[Row] = []
  threads = ThreadPoolExecutor(min(12, sharding.cores()))
  for number, stage in enumerate(stages(watch.small)):
    if number == _BEFORE_FLAGS:
      _flags(watch)
    stage = [case for case in stage if watch.wants(**case._asdict())]
    if not stage:
      continue
    if not watch.has(8, **stage[0]._asdict()):
      break
    compiling = {case: threads.submit(_compiled, case, data, mesh) for case in stage}
    for case in stage:
      row = watch.tried(
        lambda: _timed(case, compiling, watch, mesh),  # noqa: B023
        **case._asdict(),
      )
      if row:
        rows.append(row)
        watch.say(row)
      del compiling[case]
  for name in _ORDER:
    _say_best(name, rows, watch)
  threads.shutdown(wait=False, cancel_futures=True)


def _say_best(name: str, rows: list[Row], watch: Watch) -> None:
  cases = [r for r in rows if r['workload'] == name and r['precision'] == 'highest']
  default = [r for r in cases if r['default']]
  if default and len(cases) > 1:
    best = max(cases, key=lambda r: r['steps_per_second'])
    watch.say(
      {
        'what': 'best', 'workload': name,
        'best_over_default': best['steps_per_second'] / default[0]['steps_per_second'],
        **{k: best[k] for k in ('together', 'shared_start')},
      }
    )  # fmt: skip


class _Data(dict[tuple[str, int], Any]):
  """Splits on the device, by work load and clients; the last few."""

  def of(self, workload: Workload, clients: int, mesh: Mesh) -> Any:
    key = (workload.name, clients)
    if key not in self:
      self[key] = common.federated(workload, clients, mesh)
      while len(self) > 12:
        del self[next(iter(self))]
    return self[key]


class Ready(NamedTuple):
  """A compiled case."""

  compiled: Any
  args: tuple[Any, ...]
  local: LocalTraining
  clients: int
  steps: np.ndarray  # [M] of each client
  compile_seconds: float


def clients_of(case: Case) -> int:
  """Clients that a case trains."""
  if case.together == 0:
    return _CLIENTS.get(case.workload, 100)
  return case.together * (4 if case.together <= 8 else 1)


def _compiled(case: Case, data: _Data, mesh: Mesh) -> Ready:
  began = time.time()
  workload = WORKLOADS[case.workload]
  clients = clients_of(case)
  if case.together == 512 and workload.network in ('resnet8', 'lstm'):
    workload = workload._replace(examples=workload.batch_size * 4)
  local = common.training(workload, mesh, case.together)
  local = local._replace(precision=case.precision, shared_start=case.shared_start)
  train = data.of(workload, clients, mesh)
  start = sharding.replicate(tree.expand(common.params_of(workload, local.model)), mesh)
  key = sharding.replicate(jax.random.key(0), mesh)
  cohort = common.everyone(train)

  @jax.jit
  def epoch(start: Any, train: Any, key: Any) -> Any:
    state, trained = global_model.train_and_average(
      local, global_model.GlobalState(start), train, cohort, key, Averaging('uniform')
    )
    return state.params, trained.mean_loss()

  args = (start, train, key)
  compiled = epoch.lower(*args).compile()
  steps = np.asarray(num_steps(local.schedule, train.sizes(), train.max_examples))
  return Ready(compiled, args, local, clients, steps, time.time() - began)


def _timed(
  case: Case, compiling: dict[Case, Future[Ready]], watch: Watch, mesh: Mesh
) -> Row | None:
  """The figures of a case; waits until all of its stage are compiled, or may not be."""
  label = case._asdict()
  for other in compiling.values():
    try:
      other.exception(timeout=max(0.1, watch.left() - 3))
    except TimeoutError:
      watch.say(label | {'skipped': 'compiling took too long'})
      return None
  ready = compiling[case].result()
  timing = measuring.timed(
    lambda: ready.compiled(*ready.args), most=min(1.0, watch.left() / 4), repeats=9
  )
  workload = WORKLOADS[case.workload]
  steps = int(ready.steps.sum())
  rate = steps / timing['seconds']
  peak = watch.figure(
    'a', 'products float32' if case.precision == 'highest' else 'products TF32'
  )
  bandwidth = watch.figure('a', 'bandwidth')
  ended, loss = ready.compiled(*ready.args)
  stats = mesh.devices.flat[0].memory_stats() or {}
  row = label | {
    'default': case.is_default,
    'clients': ready.clients,
    'chunk': min(ready.local.clients_per_chunk, len(ready.steps)),
    'steps_per_second': rate,
    'of_peak': peak and floor.operations(workload) * rate / peak,
    'of_bandwidth': bandwidth and floor.bytes_moved(workload) * rate / bandwidth,
    'useful': common.useful_share(ready.steps, 1, ready.local.clients_per_chunk),
    'client_steps': steps,
    'loss': float(jnp.asarray(loss)),
    'compile_seconds': ready.compile_seconds,
    'program_flops': measuring.count_of(ready.compiled, 'flops'),
    'program_bytes': measuring.count_of(ready.compiled, 'bytes accessed'),
    'temporary_bytes': _temporaries(ready.compiled),
    'peak_bytes': stats.get('peak_bytes_in_use'),
    'moved': _moved(workload, ready.args[0], ended),
  }
  return row | timing


def _moved(workload: Workload, before: Any, after: Any) -> dict[str, float]:
  """Norms of the change of each parameter, as of `peers.worker.Worker.norms`."""
  old, new = (flatten_dict(params, sep='/') for params in (before, after))
  return {
    f'change of {n}': float(jnp.linalg.norm(new[n] - old[n])) for n in workload.shapes()
  }


def _temporaries(compiled: Any) -> int | None:
  try:
    return int(compiled.memory_analysis().temp_size_in_bytes)
  except Exception:
    return None


# Flags of XLA that could pay: most of the time of compiling goes to trying products.
_BEFORE_FLAGS = 3  # stages
_XLA_FLAGS = {'no Triton products': '--xla_gpu_enable_triton_gemm=false'}


def _flags(watch: Watch) -> None:
  """Four cases with other flags of XLA, in a process of their own."""
  if measuring.chip().devices.flat[0].platform != 'gpu':
    return
  for name, text in _XLA_FLAGS.items():
    if not watch.has(30, what='flags', flags=name):
      return
    env = os.environ | {
      'XLA_FLAGS': f'{os.environ.get("XLA_FLAGS", "")} {text}'.strip(),
      'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
    }
    command = [sys.executable, '-m', 'benchmarks.accelerator.speed']
    try:
      done = subprocess.run(
        command, env=env, capture_output=True, text=True,
        timeout=min(60, watch.left() - 1),
      )  # fmt: skip
    except subprocess.TimeoutExpired:
      watch.say({'what': 'flags', 'flags': name, 'skipped': 'took too long'})
      continue
    lines = [x for x in done.stdout.splitlines() if x.startswith('rate ')]
    if not lines:
      last = (done.stderr.strip().splitlines() or ['nothing'])[-1]
      watch.say({'what': 'flags', 'flags': name, 'error': last[:300]})
    for line in lines:
      _, workload, rate, seconds = line.split()
      watch.say(
        {
          'what': 'flags', 'flags': name, 'workload': workload, 'together': 64,
          'steps_per_second': float(rate), 'compile_seconds': float(seconds),
        }
      )  # fmt: skip


def main() -> None:
  """Prints the speed of four cases, with the flags of this process."""
  measuring.setup()
  jax.config.update('jax_enable_compilation_cache', False)
  mesh, data = measuring.chip(), _Data()
  cases = [Case(name, 64) for name in ('W3', 'W1', 'W8', 'W7')]
  with ThreadPoolExecutor(len(cases)) as threads:
    compiled = list(threads.map(lambda case: _compiled(case, data, mesh), cases))
  for case, ready in zip(cases, compiled, strict=True):
    timing = measuring.timed(lambda: ready.compiled(*ready.args), repeats=7)  # noqa: B023
    rate = ready.steps.sum() / timing['seconds']
    print('rate', case.workload, rate, ready.compile_seconds, flush=True)


if __name__ == '__main__':
  main()
