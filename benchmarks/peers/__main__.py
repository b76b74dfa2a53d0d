r"""Ours against other simulators: one table of ratios (`make bench`).

  python -m benchmarks.peers --torch_python=PYTHON --fedjax_python=PYTHON

Every simulator is one process that may use all cores, and all do the same work: one
local epoch of every client from one model, then their mean. Before timing, one step of
one client must change every parameter by the same norm everywhere (0.2 %), and so must
a whole round of all clients (25 %: the order of examples differs, and on random data
much of the mean is noise), so that nobody can skip work. Rounds alternate between
simulators; a round in which other processes used the cores is dropped.

Peers live in environments of their own:
  python3.11 -m venv .venv-torch && .venv-torch/bin/pip install torch==2.13.0 pfl==0.6.0
  python3.11 -m venv .venv-fedjax && .venv-fedjax/bin/pip install \
      jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 fedjax==0.0.17 'numpy<2'
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import common

_ROOT = pathlib.Path(__file__).parents[2]
_WORKLOADS = flags.DEFINE_list('workloads', ['W1', 'W2', 'W3', 'W4'], 'Cases.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds of each simulator.')
_TORCH = flags.DEFINE_string(
  'torch_python', '.venv-torch/bin/python', 'Python with torch and pfl.'
)
_FEDJAX = flags.DEFINE_string(
  'fedjax_python', '.venv-fedjax/bin/python', 'Python with fedjax.'
)
_CLIENTS = flags.DEFINE_list(
  'num_clients',
  ['W1=40', 'W2=40', 'W3=600', 'W4=10000', 'W5=40'],
  'Clients of each work load.',
)

_INSTALL = {
  'torch': 'python3.11 -m venv .venv-torch && .venv-torch/bin/pip install '
           'torch==2.13.0 pfl==0.6.0',
  'fedjax': 'python3.11 -m venv .venv-fedjax && .venv-fedjax/bin/pip install '
            "jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 fedjax==0.0.17 'numpy<2'",
}  # fmt: skip


class Peer:
  """A simulator in a process of its own."""

  def __init__(self, python: str, module: str, *arguments: str):
    self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115 - lives as long.
    self._process = subprocess.Popen(
      [python, '-m', f'benchmarks.peers.{module}', *arguments],
      cwd=_ROOT,
      # All on the CPU: the peers' environments know no other device.
      env=os.environ | {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
    )
    self.pid = self._process.pid
    self.versions = self._read()['versions']

  def _read(self) -> Any:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      self._errors.seek(0)
      lines = self._errors.read().strip().splitlines() or ['it ended without a word']
      raise RuntimeError(lines[-1])
    return json.loads(line)

  def ask(self, **command: Any) -> Any:
    """The answer to a command; see `worker.serve`."""
    assert self._process.stdin is not None
    print(json.dumps(command), file=self._process.stdin, flush=True)
    return self._read()

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait()


def start() -> dict[str, Peer]:
  """All simulators that are installed; says how to install the others."""
  cases = [
    ('ours', sys.executable, 'ours', ()),
    ('pytorch', _TORCH.value, 'pytorch', ()),
    ('pytorch, 1 thread', _TORCH.value, 'pytorch', ('1',)),
    ('fedjax', _FEDJAX.value, 'fedjax_jit', ()),
    ('pfl', _TORCH.value, 'pfl_research', ()),
    ('pfl, 1 thread', _TORCH.value, 'pfl_research', ('1',)),
  ]
  peers = {}
  for name, python, module, arguments in cases:
    try:
      peers[name] = Peer(python, module, *arguments)
    except (OSError, RuntimeError) as e:
      if name == 'ours':
        raise
      package = 'fedjax' if name == 'fedjax' else 'torch'
      print(
        f'{name} is left out ({python}: {e}). To install it:\n  {_INSTALL[package]}'
      )
  return peers


def check_equal_work(name: str, answers: dict[str, Any], tolerance: float) -> None:
  """Raises `AssertionError` unless all change every parameter alike."""
  want = answers['ours']['norms']
  for peer, answer in answers.items():
    for parameter, norm in answer['norms'].items():
      if not np.isclose(norm, want[parameter], rtol=tolerance, atol=1e-6):
        raise AssertionError(
          f'{name}: {peer} changes {parameter} by {norm:.6g}, ours by '
          f'{want[parameter]:.6g}.'
        )


def measure(name: str, peers: dict[str, Peer]) -> list[dict[str, Any]]:
  """One row for each simulator."""
  check_equal_work(name, {n: p.ask(probe=name) for n, p in peers.items()}, 2e-3)
  given = [*(_CLIENTS.default or []), *(_CLIENTS.value or [])]
  clients = dict(pair.split('=') for pair in given)
  count = int(clients[name])
  loaded = {n: p.ask(load=name, clients=count) for n, p in peers.items()}
  # The first round compiles and warms up.
  check_equal_work(name, {n: p.ask(round=1) for n, p in peers.items()}, 0.25)
  rates: dict[str, list[float]] = {peer: [] for peer in peers}
  dropped = dict.fromkeys(peers, 0)
  for _ in range(2 * _ROUNDS.value):
    for peer, process in peers.items():
      if len(rates[peer]) == _ROUNDS.value:
        continue
      activity = common.Activity([p.pid for p in peers.values()])
      seconds = process.ask(round=1)['seconds']
      if activity.foreign_share() > common.MAX_FOREIGN_SHARE:
        dropped[peer] += 1
        continue
      rates[peer].append(loaded[peer]['steps'] / seconds)
  quick = max((np.median(r) for p, r in rates.items() if p != 'ours' and r), default=0)
  rows = []
  for peer, values in rates.items():
    rate = float(np.median(values)) if values else None
    ours = float(np.median(rates['ours'])) if rates['ours'] else None
    rows.append(
      {
        'workload': name,
        'simulator': peer,
        'clients': count,
        'steps_per_second': rate,
        'rounds': len(values),
        'dropped': dropped[peer],
        'ours_over_it': ours / rate if ours and rate and peer != 'ours' else None,
        'over_fastest_peer': rate / quick
        if peer == 'ours' and rate and quick
        else None,
      }
    )
  return rows


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  peers = start()
  rows = []
  columns = (
    'workload',
    'simulator',
    'clients',
    'steps_per_second',
    'ours_over_it',
    'over_fastest_peer',
    'rounds',
    'dropped',
  )
  for name in _WORKLOADS.value:
    rows += measure(name, peers)
    print(common.table(rows[-len(peers) :], columns), flush=True)
  versions = {name: peer.versions for name, peer in peers.items()}
  for peer in peers.values():
    peer.close()
  print(common.table(rows, columns))
  jax.config.update('jax_platforms', 'cpu')
  rows.append({'versions': versions})
  common.save('peers', common.setup(), rows)


if __name__ == '__main__':
  app.run(main)
