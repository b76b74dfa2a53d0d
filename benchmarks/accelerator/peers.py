"""Part d: PyTorch and FedJAX on the same chip, beside part c, doing equal work.

All train the same clients from the same model for an epoch and average them. Before
timing, a step of one client must change every parameter by the same norm as with ours
(0.2 %; 2 % with TF32), and so must a round of all clients as in part c (25 %: orders
differ, and on random data much of the mean is noise). `unequal` says where it does not;
such a row is no comparison. Where clients train one after the other, so few of them are
timed.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Row, Watch
from benchmarks.peers import comparison

# Clients of each work load, as in part c.
_CLIENTS = {'W1': 100, 'W7': 100, 'W3': 1200, 'W8': 100, 'W2': 100}
_SMALL = {'W3': 4}
# Those also trained with products whose factors are rounded.
_ROUNDED = ('W1', 'W3', 'W7')
_ONE_BY_ONE = 16
_NOT_IN_FEDJAX = ('W7', 'W8')  # Networks that benchmarks.peers.fedjax_jit lacks.


def measure(watch: Watch) -> None:
  """Times each peer in a process of its own."""
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  loads = _SMALL if watch.small else _CLIENTS
  ours: dict[str, Any] = {}
  for row in _rows(_steps_of_ours, loads, watch):
    ours |= row
  for peer in (_torch, _fedjax):
    for row in _rows(peer, loads, watch):
      if (norms := row.pop('norms', None)) is not None:
        _compare(row, norms, ours, watch)
      watch.say(row)


def _rows(target: Any, loads: dict[str, int], watch: Watch) -> Any:
  """Yields what a process of `target` sends, until it ends or time is over."""
  process, pipe = measuring.started(target, loads, watch.deadline, watch.only)
  yield from measuring.rows_of(process, pipe, watch, of=target.__name__)


def _compare(row: Row, norms: list[Any], ours: dict[str, Any], watch: Watch) -> None:
  """Adds to a row how it compares with ours of the same work load and precision."""
  name, precision = row['workload'], row['precision']
  known = [
    r
    for r in watch.known.get('c', [])
    if r.get('workload') == name
    and (r.get('together'), r.get('shared_start')) == (0, 'auto')
    and r.get('precision') == precision
    and 'steps_per_second' in r
  ]
  wanted = [(ours.get(name), norms[0], 2e-3 if precision == 'highest' else 2e-2)]
  if known:
    row['ours_over_it'] = known[-1]['steps_per_second'] / row['steps_per_second']
    if known[-1]['clients'] == row['clients']:
      its = {k: x for k, x in norms[1].items() if k in known[-1]['moved']}
      wanted.append((known[-1]['moved'], its, 0.25))
  try:
    for mine, its, tolerance in wanted:
      if mine is not None:
        comparison.check_equal_work(name, {'ours': mine, 'it': its}, tolerance)
  except AssertionError as e:
    row['unequal'] = str(e)


def _prepared(runner: Any, name: str, clients: int) -> tuple[Any, Row]:
  """A worker after its first round, and the norms of a step and of that round."""
  from benchmarks.peers import worker

  norms, began = [], time.time()
  for count in (0, clients):
    held = worker.Worker(runner)
    steps = held.load(name, count)['steps']
    held.round()
    norms.append(held.norms())
  return held, {
    'workload': name, 'clients': clients, 'client_steps': steps, 'norms': norms,
    'ready_seconds': time.time() - began,
  }  # fmt: skip


def _row(prepared: tuple[Any, Row]) -> Row:
  """The speed of a worker."""
  held, row = prepared
  timing = measuring.timed(lambda: held.round() or (), most=0.8, repeats=7)
  return row | {'steps_per_second': row['client_steps'] / timing['seconds']} | timing


def _steps_of_ours(
  pipe: Connection, loads: dict[str, int], deadline: float, only: str
) -> None:
  """Sends, by work load, how far ours moves each parameter in a step, on the CPU."""
  del deadline, only
  import jax

  from benchmarks.peers import ours, worker

  jax.config.update('jax_platforms', 'cpu')
  measuring.setup()

  def norms(name: str) -> Any:
    held = worker.Worker(ours.Ours)
    held.load(name, 0)
    held.round()
    return held.norms()

  with ThreadPoolExecutor(8) as threads:
    steps = dict(zip(loads, threads.map(norms, loads), strict=True))
  pipe.send(steps)


def _fedjax(
  pipe: Connection, loads: dict[str, int], deadline: float, only: str
) -> None:
  """Sends FedJAX's rows: its 'jit' backend trains one client after the other."""
  watch = Watch(pipe.send, deadline, False, {}, '', only)
  case = {'simulator': 'FedJAX', 'arrangement': 'jit'}
  if watch.has(10, **case):
    watch.tried(lambda: _fedjax_rows(loads, case, watch), **case)


def _fedjax_rows(loads: dict[str, int], case: Row, watch: Watch) -> None:
  import fedjax
  import jax

  from benchmarks.peers import fedjax_jit

  # FedJAX 0.0.17 calls it by this name, which JAX has removed since.
  jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
  fedjax.set_for_each_client_backend('jit')
  for precision in ('highest', 'default'):
    jax.config.update('jax_default_matmul_precision', precision)
    for name, clients in loads.items():
      known = case | {'workload': name, 'precision': precision}
      rounded = precision == 'default' and name not in _ROUNDED
      if name in _NOT_IN_FEDJAX or rounded or not watch.has(10, **known):
        continue
      clients = min(clients, _ONE_BY_ONE)
      row = watch.tried(
        lambda: _row(_prepared(fedjax_jit.FedJax, name, clients)),  # noqa: B023
        **known,
      )
      if row:
        watch.say(known | row)


def _torch(pipe: Connection, loads: dict[str, int], deadline: float, only: str) -> None:
  watch = Watch(pipe.send, deadline, False, {}, '', only)
  import torch

  from benchmarks.accelerator import pytorch_rounds

  arrangements = dict(pytorch_rounds.ARRANGEMENTS)
  if not torch.cuda.is_available():
    pytorch_rounds.Loop.device = 'cpu'
    arrangements = {n: r for n, r in arrangements.items() if 'CUDA' not in n}
  for precision in ('highest', 'default'):
    pytorch_rounds.set_precision(precision == 'default')
    for arrangement, runner in arrangements.items():
      # Launches take a loop's time, not products.
      slow = 'compile' in arrangement or arrangement == 'loop'
      if slow and precision == 'default':
        continue
      for name, clients in loads.items():
        if 'loop' in arrangement:
          clients = min(clients, _ONE_BY_ONE)
        if precision == 'default' and name not in _ROUNDED:
          continue
        if 'compile' in arrangement and name != 'W1' and len(loads) > 1:
          continue
        if 'vmap' in arrangement and name == 'W8':  # Which it cannot map: nn.LSTM.
          continue
        case = {
          'simulator': 'PyTorch',
          'arrangement': arrangement,
          'precision': precision,
        }
        if not watch.has(30 if 'compile' in arrangement else 4, workload=name, **case):
          continue
        row = watch.tried(
          lambda: _row(_prepared(runner, name, clients)),  # noqa: B023
          workload=name, **case,
        )  # fmt: skip
        if row:
          pipe.send(case | row)
        torch.cuda.empty_cache()
