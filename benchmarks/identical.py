r"""Bits of models over repetitions, layouts, processes and resumed runs.

  python -m benchmarks.identical [--identical] [--torch_python=PYTHON]

The table compares models after each round with those of the first run: equal SHA-256,
or the largest distance as a share of the round's move. Repetitions, two processes and
resumed runs are new processes, which compile anew. NonFed adds up no clients: where its
models are equal and those of a method are not, the method's sums round differently.
All processes have as many threads, but for the row 'two threads'. With --identical,
chunks cannot be chosen.

With --torch_python, Flower and BlazeFL repeat a round of W9; see `benchmarks.peers`.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.peers import processes as peers
from benchmarks.workloads import WORKLOADS
from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.simulation import simulate
from fesem_jax.utils import processes

_REPETITIONS = flags.DEFINE_integer('repetitions', 10, 'Runs of the first layout.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Rounds of a run.')
_CLIENTS = flags.DEFINE_integer('num_clients', 16, 'Clients of a run.')
_IDENTICAL = flags.DEFINE_bool('identical', False, 'Runs with --identical.')
_TORCH = flags.DEFINE_string('torch_python', None, 'Python with flwr and blazefl.')
_METHODS = flags.DEFINE_list(
  'methods',
  ['fed_avg/W9', 'nonfed/W9', 'fed_avg/W3', 'fesem/W3', 'nonfed/W3'],
  'Methods and their work loads.',
)
_CASE = flags.DEFINE_string('case', None, 'JSON: what this process runs.')

# Devices and clients a chunk; the others are compared with the first one.
_LAYOUTS = {
  '': (1, 4),
  'two devices': (2, 4),
  'four devices': (4, 4),
  'one client a chunk': (1, 1),
  'all clients in a chunk': (1, 100),
}
# As many threads as the most devices of a process, which XLA has at least.
_THREADS = 4
_OPTIONS: dict[str, dict[str, Any]] = {'fesem': {'num_clusters': 4}}
_PEERS = {
  'Flower, two actors': ('flower', '1'),
  'BlazeFL, two threads': ('blazefl', 'threads', '2'),
  'BlazeFL, two processes': ('blazefl', 'processes', '2'),
}
_COLUMNS = ('method', 'what', 'runs', 'identical', 'of_a_move')

# [rounds, P] models after each round.
Models = np.ndarray


class _Save(Callback):
  """Keeps the models after each round."""

  def __init__(self) -> None:
    self.models: list[np.ndarray] = []

  def on_round(self, event: Any) -> None:
    layers = [*event.models.shared.values(), *event.models.personal.values()]
    self.models.append(np.concatenate([np.ravel(x) for x in layers]))


def models_of(
  method: str, layout: tuple[int, int], rounds: int, workdir: str | None = None
) -> Models:
  """Models of a run in this process: those of the rounds that it ran."""
  name, load = method.split('/')
  workload = WORKLOADS[load]._replace(epochs=1)
  devices, chunk = layout
  chunk = 0 if _IDENTICAL.value else chunk
  local = common.training(workload, sharding.client_mesh(devices), chunk)
  x, y, sizes = workload.arrays(_CLIENTS.value)

  def data(step: int) -> FederatedData:
    return FederatedData.from_arrays(
      x[::step], y[::step], sizes // step, num_classes=10, scale=1 / 255
    )

  save = _Save()
  simulate(
    algorithms.build(name, local, **_OPTIONS.get(name, {})),
    data(1),
    data(10),
    rounds=rounds,
    eval_every=0,
    finetune_epochs=0,
    workdir=workdir and f'{workdir}/{method}',
    callbacks=[save],
    progress=False,
    ignore_checks=['FJ102'],
  )
  return np.array(save.models)


def run(case: dict[str, Any]) -> None:
  """Runs a case in this process, each method in each layout, and saves its models."""
  group = processes.Group(*case['group'])
  sharding.setup_devices(case['devices'], group, identical=_IDENTICAL.value)
  jax.config.update('jax_enable_compilation_cache', False)
  saved: dict[str, Any] = {
    f'{method} {what}': models_of(
      method, _LAYOUTS[what], case['rounds'], case['workdir']
    )
    for method in _METHODS.value
    for what in case['layouts']
    if len(case['layouts']) > 1 or not method.startswith('nonfed')
  }
  if processes.is_first():
    np.savez(case['out'], **saved)


def in_new_process(
  layouts: list[str],
  devices: int = 1,
  count: int = 1,
  rounds: int = 0,
  workdir: str | None = None,
  threads: int = _THREADS,
) -> dict[str, Models]:
  """Models by method and layout of a run in `count` new processes."""
  with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{free.getsockname()[1]}'
    free.close()
    case: dict[str, Any] = {
      'layouts': layouts,
      'devices': devices,
      'rounds': rounds or _ROUNDS.value,
      'workdir': workdir,
      'out': f'{folder}/models.npz',
    }
    started = []
    for i in range(count):
      text = json.dumps(case | {'group': (address, i, count) if count > 1 else ()})
      command = [sys.executable, '-m', 'benchmarks.identical', *sys.argv[1:]]
      variables = os.environ | {'PJRT_NPROC': str(threads)}
      command.append(f'--case={text}')
      started.append(subprocess.Popen(command, env=variables))
    codes = [process.wait() for process in started]
    if any(codes):
      raise RuntimeError(f'a process failed: {case}')
    with np.load(case['out']) as file:
      return dict(file)


def resumed() -> dict[str, Models]:
  """Models of runs that a new process resumes at each round."""
  with tempfile.TemporaryDirectory() as workdir:
    parts = [
      in_new_process([''], rounds=r + 1, workdir=workdir) for r in range(_ROUNDS.value)
    ]
  return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def of_peer(*arguments: str) -> Models:
  """The start and the model after a round of W9 of another simulator."""
  module, *others = arguments
  peer = peers.Peer([str(_TORCH.value), '-m', f'benchmarks.peers.{module}', *others])
  peer.load('W9', _CLIENTS.value // 2)
  peer.round()
  with tempfile.NamedTemporaryFile(suffix='.npy') as file:
    peer.save(file.name)
    models = np.load(file.name)
  peer.close()
  return models


def row(method: str, what: str, models: Models, others: list[Models]) -> dict[str, Any]:
  """Compares runs with the first one."""
  moves = np.linalg.norm(np.diff(models, axis=0), axis=1)
  moves = np.concatenate([moves[:1], moves])  # The first one's start is not saved.
  differences = [np.linalg.norm(other - models, axis=1) / moves for other in others]
  return {
    'method': method,
    'what': what,
    'runs': 1 + len(others),
    'identical': all(np.array_equal(models, other) for other in others),
    'of_a_move': float(np.max(differences)),
    'sha256': [hashlib.sha256(m.tobytes()).hexdigest() for m in models],
  }


def ours() -> list[dict[str, Any]]:
  """A row for each method and question."""
  chosen = [x for x in _LAYOUTS if not (_IDENTICAL.value and 'chunk' in x)]
  layouts = in_new_process(chosen, devices=4)
  repeated = [in_new_process(['']) for _ in range(_REPETITIONS.value - 1)]
  again, two = resumed(), in_new_process(['two devices'], devices=2, count=2)
  fewer = in_new_process([''], threads=2)
  rows = []
  for method in _METHODS.value:
    first = layouts[f'{method} ']
    if f'{method} ' in again:
      same = [other[f'{method} '] for other in repeated]
      devices = f'{method} two devices'
      rows += [
        row(method, 'repetitions', first, same),
        row(method, 'resumed at each round', first, [again[f'{method} ']]),
        row(method, 'two processes', layouts[devices], [two[devices]]),
        row(method, 'two threads', first, [fewer[f'{method} ']]),
      ]
    rows += [
      row(method, what, first, [layouts[f'{method} {what}']]) for what in chosen if what
    ]
  return rows


def main(argv: list[str]) -> None:
  """Runs the comparison, or a case of it."""
  del argv
  if _CASE.value:
    run(json.loads(_CASE.value))
    return
  rows = ours()
  print(common.table(rows, _COLUMNS), flush=True)
  for name, arguments in _PEERS.items() if _TORCH.value else ():
    first, *others = [of_peer(*arguments) for _ in range(3)]
    rows.append(row(name, 'repetitions of a round', first, others))
  print(common.table(rows, _COLUMNS))
  common.save('identical', common.setup(), rows)


if __name__ == '__main__':
  app.run(main)
