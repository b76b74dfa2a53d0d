r"""Cost of callbacks: seconds of whole runs with and without them.

  python -m benchmarks.callbacks --workloads=W3,W4

Runs of FeSEM(4) by `simulate`, with a workdir, in turn without callbacks, with one that
does nothing, with `ClientHistory` of every round, and with `AssignmentRegret`, which
measures at evaluations. Programs are compiled before. `ratio` is to the run without
callbacks of the same turn, the median over turns; turns during which other processes
used the cores are dropped.
"""

import gc
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags

import fesem_jax as fj
from benchmarks import common
from benchmarks.workloads import WORKLOADS, Workload
from fesem_jax.run.callbacks.assignment_regret import AssignmentRegret
from fesem_jax.run.callbacks.client_history import ClientHistory

COLUMNS = ('workload', 'clients', 'callback', 'seconds', 'ratio', 'turns', 'dropped')

_WORKLOADS = flags.DEFINE_list('workloads', ['W3', 'W4'], 'Of W1 .. W8.')
_CLIENTS = flags.DEFINE_integer('num_clients', 0, 'Clients; 0: as the work load says.')
_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Rounds of a run.')
_EVERY = flags.DEFINE_integer('eval_every', 5, 'Rounds between evaluations.')
_TURNS = flags.DEFINE_integer('turns', 5, 'Runs with each callback.')

_CALLBACKS: dict[str, Callable[[], list[fj.Callback]]] = {
  'none': list,
  'does nothing': lambda: [fj.Callback()],
  'ClientHistory(1)': lambda: [ClientHistory(1)],
  'AssignmentRegret': lambda: [AssignmentRegret()],
}


def _splits(workload: Workload, num_clients: int) -> tuple[Any, Any]:
  """Training data of the work load, and a tenth of it as test data."""
  x, y, sizes = workload.arrays(num_clients)
  ends, tested = np.cumsum(sizes), np.maximum(sizes // 10, 1)
  pairs = zip(ends - sizes, tested, strict=True)
  rows = np.concatenate([np.arange(start, start + n) for start, n in pairs])
  scale = 1 / 255 if x.dtype == np.uint8 else 1.0
  parts = (x, y, sizes), (x[rows], y[rows], tested)
  train, test = (
    fj.FederatedData.from_arrays(*part, num_classes=workload.num_classes, scale=scale)
    for part in parts
  )
  return train, test


def _run_of(workload: Workload, num_clients: int, mesh: Any) -> Callable[..., None]:
  """A function of callbacks that runs the work load with them."""
  train, test = _splits(workload, num_clients)
  local = common.training(workload, mesh)
  fesem = fj.algorithms.build('fesem', local, num_clusters=4, init_restarts=1)

  def run(callbacks: list[fj.Callback]) -> None:
    with tempfile.TemporaryDirectory() as folder:
      fj.simulate(
        fesem, train, test, rounds=_ROUNDS.value, eval_every=_EVERY.value,
        workdir=fj.Workdir(folder, 0, save_models=False, portrait=False),
        callbacks=[fj.callbacks.Progress(False), *callbacks],
      )  # fmt: skip

  return run


def measure(name: str, mesh: Any) -> list[dict[str, Any]]:
  """One row for each callback on one work load."""
  workload = WORKLOADS[name]
  num_clients = _CLIENTS.value or workload.num_clients
  run = _run_of(workload, num_clients, mesh)
  for make in _CALLBACKS.values():
    run(make())
  kept: list[list[float]] = []
  dropped = 0
  while len(kept) < _TURNS.value and dropped < _TURNS.value:
    activity, seconds = common.Activity(), {}
    # Each callback comes first in some turn: a run leaves garbage to the next one.
    names, first = list(_CALLBACKS), len(kept) % len(_CALLBACKS)
    for callback in names[first:] + names[:first]:
      gc.collect()
      began = time.perf_counter()
      run(_CALLBACKS[callback]())
      seconds[callback] = time.perf_counter() - began
    if activity.foreign_share() > common.MAX_FOREIGN_SHARE:
      dropped += 1
    else:
      kept.append([seconds[callback] for callback in names])
  turns = np.array(kept).reshape(-1, len(_CALLBACKS))
  rows = []
  for callback, own in zip(_CALLBACKS, turns.T, strict=True):
    row = {
      'workload': name, 'clients': num_clients, 'rounds': _ROUNDS.value,
      'eval_every': _EVERY.value, 'callback': callback, 'turns': len(kept),
      'dropped': dropped,
    }  # fmt: skip
    if kept:
      row['seconds'] = float(np.median(own))
      row['ratio'] = float(np.median(own / turns[:, 0]))
    rows.append(row)
  return rows


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  mesh = common.setup()
  rows = []
  for name in _WORKLOADS.value:
    rows += measure(name, mesh)
    print(common.table(rows, COLUMNS), flush=True)
  common.save('callbacks', mesh, rows)


if __name__ == '__main__':
  app.run(main)
