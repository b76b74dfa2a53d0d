"""Part e: whole rounds of methods, many runs as one program, the binary's first round.

`over_fed_avg` is a round's time over that of FedAvg on the same clients. A method whose
round or start does not fit the device is `refused`, with what it says. The methods of a
stage are compiled at the same time, and then timed one after the other.
"""

import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import optax

from benchmarks import common
from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Watch
from benchmarks.workloads import WORKLOADS
from fesem_jax import algorithms, data, models, simulate_many
from fesem_jax.core.local_training import local_training
from fesem_jax.utils.errors import UserError

_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
  'fed_avg': ('fed_avg', {}),
  'fesem(4)': ('fesem', {'num_clusters': 4, 'init_clients': 100}),
  'fesem(4), streamed': (
    'fesem', {'num_clusters': 4, 'init_clients': 100, 'client_state': 'streamed'}
  ),
  'hypo_cluster(4)': ('hypo_cluster', {'num_clusters': 4, 'init_rounds': 2}),
  'fesem(4), own kernels': ('fesem', {'num_clusters': 4}),
  'ditto': ('ditto', {}),
  'fesem(4), offloaded': (
    'fesem', {'num_clusters': 4, 'init_clients': 100, 'client_state': 'offloaded'}
  ),
}  # fmt: skip
_STACKED = ('fed_avg', 'fesem(4)', 'hypo_cluster(4)', 'ditto')


class Federation(NamedTuple):
  """A work load with so many clients, and the methods whose rounds are timed."""

  workload: str
  clients: int
  methods: tuple[str, ...] = _STACKED
  examples: int = 0  # of a client; 0 as the work load says


# Federations of a stage are compiled at the same time.
STAGES = (
  (Federation('W1', 100),),
  (
    Federation('W1', 1000, ('fed_avg', 'fesem(4)', 'fesem(4), streamed')),
    Federation('W1', 10_000, ('fed_avg', 'fesem(4), streamed', 'fesem(4)'), 50),
    Federation('W3', 1200),
  ),
  (Federation('W7', 100), Federation('W8', 100)),
  (
    Federation('W1', 32, ('fed_avg', 'fesem(4)', 'fesem(4), own kernels')),
    Federation('W1', 300, ('fed_avg', 'fesem(4), offloaded')),
    Federation('W7', 500, ('fed_avg', 'fesem(4)')),
    Federation('W8', 1000, ('fed_avg', 'fesem(4)')),
  ),
)
_SMALL = (
  (Federation('W4', 40, ('fed_avg', 'fesem(4)')),),
  (Federation('W4', 20, ('fed_avg',)), Federation('W4', 30, ('fed_avg',))),
)


def measure(watch: Watch) -> None:
  """Times the rounds of every federation that there is time for."""
  # Processes of federations share the accelerator.
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  measuring.setup()
  first, *others = _SMALL if watch.small else STAGES
  _stage(first, watch)
  _runs_together(watch)
  _first_round(watch)
  for stage in others:
    _stage(stage, watch)


def _stage(stage: tuple[Federation, ...], watch: Watch) -> None:
  """Compiles each federation in a process of its own; then times them in turn."""
  running = []
  for federation in stage:
    case = {'workload': federation.workload, 'clients': federation.clients}
    if watch.has(0 if watch.small else 30, **case):
      end, small = watch.deadline, watch.small
      running.append((case, *measuring.started(_federation, federation, end, small)))
  ready = []
  # What is ready when a third of the time is left is timed, nothing else by then.
  latest = time.time() + watch.left() * 2 / 3
  for case, process, pipe in running:
    try:
      if pipe.poll(max(0.0, latest - time.time())):
        pipe.recv()
        ready.append((case, process, pipe))
        continue
      watch.say(case | {'skipped': 'not compiled in time'})
    except EOFError:
      process.join()
      watch.say(case | {'error': f'ended with exit code {process.exitcode}'})
    process.kill()
    process.join()
  for case, process, pipe in ready:
    pipe.send('go')
    for row in measuring.rows_of(process, pipe, watch, **case):
      watch.say(case | row)


def _federation(
  pipe: Connection, federation: Federation, deadline: float, small: bool
) -> None:
  """Sends a row of each method, once it may time them."""
  measuring.setup()
  watch = Watch(pipe.send, deadline, small, {}, '')
  workload = WORKLOADS[federation.workload]
  if federation.examples:
    workload = workload._replace(examples=federation.examples)
  mesh, clients = measuring.chip(), federation.clients
  train = common.federated(workload, clients, mesh)
  local = common.training(workload, mesh)

  def prepared(text: str) -> tuple[common.Method, float]:
    began, (name, options) = time.time(), _METHODS[text]
    has_kernels = 'own kernels' in text
    settings = local._replace(shared_start='off') if has_kernels else local
    return common.Method(name, options, settings, train), time.time() - began

  # Models of all these clients may not fit, which must not take other methods along.
  alone = [t for t in federation.methods if clients > 1000 and t == 'fesem(4)']
  with ThreadPoolExecutor(len(federation.methods)) as threads:
    preparing = {
      text: threads.submit(prepared, text)
      for text in federation.methods
      if text not in alone
    }
  pipe.send(None)
  pipe.recv()
  base = None
  for text in federation.methods:
    if not watch.has(0 if small else 3 + 5 * (base or 0), method=text):
      continue
    try:
      ready, seconds = prepared(text) if text in alone else preparing.pop(text).result()
      timing = measuring.timed(ready.round, most=min(2.0, watch.left() / 4), repeats=7)
    except (UserError, jax.errors.JaxRuntimeError) as e:
      watch.say({'method': text, 'refused': str(e)[:500]})
      e.__traceback__ = None
      gc.collect()  # What the failure holds of the device's memory.
      continue
    if text == 'fed_avg':
      base = timing['seconds']
    stats = mesh.devices.flat[0].memory_stats() or {}
    watch.say(
      {
        'method': text, 'over_fed_avg': base and timing['seconds'] / base,
        'chunk': min(local.clients_per_chunk, clients), 'examples': workload.examples,
        'steps_per_second': workload.steps(clients) / timing['seconds'],
        'start_seconds': seconds, 'compile_seconds': ready.compile_seconds,
        'state_bytes': ready.state_bytes(), 'planned_bytes': ready.needs.peak,
        'peak_bytes': stats.get('peak_bytes_in_use'), **timing,
      }
    )  # fmt: skip
    del ready


def _runs_together(watch: Watch) -> None:
  """Seconds of R runs of FeSEM that differ in their seeds, as one program.

  The second time, the programs are there already.
  """
  train, test = data.load('digits', partition='rotated', num_clients=80)
  model = models.build('mlp', train.example_shape, train.num_classes, (32,))
  local = local_training(model, optax.sgd(0.05), batch_size=10)
  algorithm = algorithms.fesem(local, num_clusters=4)
  rounds = 3 if watch.small else 30
  for runs in (1, 2) if watch.small else (1, 4, 16, 64):
    case: dict[str, Any] = {'what': 'runs as one program', 'runs': runs}
    if not watch.has(1 if watch.small else 8, **case):
      return
    took = []
    for first in (0, 1000):
      began = time.time()
      ended = simulate_many(
        algorithm, [{'seed': first + i} for i in range(runs)],
        train=train, test=test, rounds=rounds,
      )  # fmt: skip
      took.append(time.time() - began)
      for one in ended:
        if isinstance(one, Exception):
          raise one
    watch.say(
      case
      | {
        'rounds': rounds, 'with_compiling': took[0], 'seconds': took[1],
        'seconds_of_a_run': took[1] / runs,
      }
    )  # fmt: skip


def _first_round(watch: Watch) -> None:
  """Seconds until a run of the binary has written its first round, and until it ends.

  Once with no compiled programs, and again with those of the first time.
  """
  with tempfile.TemporaryDirectory() as folder:
    for label in ('cold', 'warm'):
      if not watch.has(0 if watch.small else 25, what='first round', start=label):
        return
      env = os.environ | {
        'JAX_COMPILATION_CACHE_DIR': f'{folder}/cache',
        'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
      }
      workdir = pathlib.Path(folder) / label
      watch.tried(
        lambda: _run(workdir, env, label, watch),  # noqa: B023
        what='first round', start=label,
      )  # fmt: skip


def _run(workdir: pathlib.Path, env: dict[str, str], label: str, watch: Watch) -> None:
  command = [
    sys.executable, '-m', 'experiments.run', '--algorithm=fesem', '--num_clusters=4',
    '--dataset=digits', '--partition=rotated', '--num_clients=80', '--rounds=3',
    f'--workdir={workdir}',
  ]  # fmt: skip
  records = workdir / 'metrics.jsonl'
  first, began = None, time.time()
  with tempfile.TemporaryFile('w+') as output:
    process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    while process.poll() is None and watch.left() > -3:
      if first is None and records.exists() and records.stat().st_size:
        first = time.time() - began
      time.sleep(0.02)
    ended = process.poll()
    process.kill()
    output.seek(0)
    lines = output.read().strip().splitlines()
  row = {'what': 'first round', 'start': label, 'first_round_seconds': first}
  row |= {'all_seconds': time.time() - began, 'exit_code': ended}
  if ended != 0:
    row['error'] = ' / '.join(lines[-3:])[-500:]
  watch.say(row)
