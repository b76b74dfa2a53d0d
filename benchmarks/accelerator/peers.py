"""Part d: PyTorch on the same chip, beside ours, doing equal work.

All train the same clients from the same model for an epoch and average them. Before
timing, a step of one client must change every parameter by the same norm as with ours
(0.2 %; 2 % with TF32), and so must a round (25 %: orders differ, and on random data
much of the mean is noise). `unequal` says where it does not; such a row is no
comparison.
"""

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Row, Watch
from benchmarks.peers import comparison

# Clients of each work load.
_CLIENTS = {'W1': 100, 'W3': 600, 'W7': 32, 'W8': 64, 'W2': 100, 'W4': 2000}
_SMALL = {'W3': 4}
# Those also trained with products whose factors are rounded.
_ROUNDED = ('W1', 'W3', 'W7')


def measure(watch: Watch) -> None:
  """Times ours and PyTorch, each in a process of its own."""
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  loads = _SMALL if watch.small else _CLIENTS
  context = multiprocessing.get_context('spawn')
  ours: dict[tuple[str, str], Row] = {}
  for target in (_ours, _torch):
    pipe, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, loads, watch.deadline))
    process.start()
    theirs.close()
    try:
      while True:
        if not pipe.poll(max(0.0, watch.left())):
          watch.say({'simulator': target.__name__, 'skipped': 'no time is left'})
          break
        row = pipe.recv()
        if row is None:
          break
        _say(row, ours, watch)
    except EOFError:
      process.join(2)
      text = f'ended with exit code {process.exitcode}'
      watch.say({'simulator': target.__name__, 'error': text})
    process.kill()
    process.join()


def _say(row: Row, ours: dict[tuple[str, str], Row], watch: Watch) -> None:
  """Says a row, compared with ours of the same work load and precision."""
  norms = row.pop('norms', None)
  if norms is None:
    watch.say(row)
    return
  key = row['workload'], row['precision']
  if row['simulator'] == 'ours':
    ours[key] = row | {'norms': norms}
  elif key in ours:
    tolerance = 2e-3 if row['precision'] == 'highest' else 2e-2
    of_step, of_round = ours[key]['norms']
    try:
      comparison.check_equal_work(
        row['workload'], {'ours': of_step, 'it': norms[0]}, tolerance
      )
      comparison.check_equal_work(
        row['workload'], {'ours': of_round, 'it': norms[1]}, 0.25
      )
    except AssertionError as e:
      row['unequal'] = str(e)
    row['ours_over_it'] = ours[key]['steps_per_second'] / row['steps_per_second']
  watch.say(row)


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
  found = measuring.timed(lambda: held.round() or (), most=0.8, repeats=7)
  return row | {'steps_per_second': row['client_steps'] / found['seconds']} | found


def _ours(pipe: Connection, loads: dict[str, int], deadline: float) -> None:
  from benchmarks.peers import ours

  measuring.setup()
  watch = Watch(pipe.send, deadline, False, {}, '')

  class Fast(ours.Ours):
    precision = 'default'

  # Compiled at the same time, and then timed one after the other.
  with ThreadPoolExecutor(8) as threads:
    cases = [(ours.Ours, name) for name in loads]
    cases += [(Fast, name) for name in loads if name in _ROUNDED]
    preparing = {
      case: threads.submit(_prepared, *case, loads[case[1]]) for case in cases
    }
    for future in preparing.values():
      future.exception()
    for (runner, name), future in preparing.items():
      case = {'simulator': 'ours', 'precision': runner.precision}
      row = watch.tried(
        lambda: _row(future.result()),  # noqa: B023
        workload=name, **case,
      )  # fmt: skip
      if row:
        pipe.send(case | row)
  pipe.send(None)


def _torch(pipe: Connection, loads: dict[str, int], deadline: float) -> None:
  watch = Watch(pipe.send, deadline, False, {}, '')
  import torch

  from benchmarks.accelerator import pytorch_rounds

  arrangements = dict(pytorch_rounds.ARRANGEMENTS)
  if not torch.cuda.is_available():
    pytorch_rounds.Loop.device = 'cpu'
    arrangements = {n: r for n, r in arrangements.items() if 'CUDA' not in n}
  for arrangement, runner in arrangements.items():
    for precision in ('highest', 'default'):
      pytorch_rounds.set_precision(precision == 'default')
      # Launches take a loop's time, not products.
      slow = 'compile' in arrangement or arrangement == 'loop'
      if slow and precision == 'default':
        continue
      for name, clients in loads.items():
        if precision == 'default' and name not in _ROUNDED:
          continue
        if 'compile' in arrangement and name != 'W1' and clients > 4:
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
  pipe.send(None)
