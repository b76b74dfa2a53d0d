r"""Ours against other simulators: one table of ratios (`make bench`).

  python -m benchmarks.peers --torch_python=PYTHON --fedjax_python=PYTHON

All do the same work: the local epochs of every client from one model, then their mean,
weighted by examples. Before timing, one step of one client must change every parameter
by the same norm everywhere (0.2 %), and so must a whole round of all clients (25 %: the
order of examples differs, and on random data much of the mean is noise), so that work
cannot be skipped. Rounds alternate between simulators; a round in which other processes
used the cores is dropped.

Ours is one process with a device per core. A peer runs in every arrangement that its
users could pick, and the ratio is to its best one:
  threads: one process whose operations may use all cores;
  1 thread: one process on one core;
  process per core: one process of one thread on each core. They split the clients, each
    averages its own, and they add up these means in shared memory, within the time.
FedJAX's own split over devices (`pmap`) is left out: its steps took as much processor
time as those of its `jit` on W1 and W2, and four times as much on W4.

`of_floor` is the share of a counted floor that is reached; see `benchmarks.floor`.

Peers live in environments of their own:
  python3.11 -m venv .venv-torch && .venv-torch/bin/pip install torch==2.13.0 pfl==0.6.0
  python3.11 -m venv .venv-fedjax && .venv-fedjax/bin/pip install \
      jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 fedjax==0.0.17 'numpy<2'

With --other_python, ours takes its turns with another version of JAX too:
  make install CONSTRAINTS=constraints-newest.txt PYTHON=python3.13  (in a clone)
  python -m benchmarks.peers --other_python=CLONE/.venv/bin/python
"""

import sys
from typing import Any

import jax
from absl import app, flags

from benchmarks import common, floor
from benchmarks.peers import comparison, processes
from benchmarks.workloads import WORKLOADS

_WORKLOADS = flags.DEFINE_list(
  'workloads', ['W1', 'W6', 'W2', 'W3', 'W4', 'W7', 'W8'], 'Of W1 .. W8.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds of each arrangement.')
_TORCH = flags.DEFINE_string(
  'torch_python', '.venv-torch/bin/python', 'Python with torch and pfl.'
)
_FEDJAX = flags.DEFINE_string(
  'fedjax_python', '.venv-fedjax/bin/python', 'Python with fedjax.'
)
_OTHER = flags.DEFINE_string(
  'other_python', None, 'Python with another JAX, which runs ours as well.'
)
_CLIENTS = flags.DEFINE_list(
  'num_clients',
  ['W1=40', 'W2=40', 'W3=600', 'W4=10000', 'W5=40', 'W6=16', 'W7=8', 'W8=16'],
  'Clients of each work load; with a few, a whole round differs by more than 25 %.',
)

_INSTALL = {
  'torch': 'python3.11 -m venv .venv-torch && .venv-torch/bin/pip install '
           'torch==2.13.0 pfl==0.6.0',
  'fedjax': 'python3.11 -m venv .venv-fedjax && .venv-fedjax/bin/pip install '
            "jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 fedjax==0.0.17 'numpy<2'",
}  # fmt: skip

# Simulator, package, module, and for each arrangement its arguments.
_ARRANGEMENTS = (
  (comparison.OURS, '', 'ours', {'device per core': ()}),
  (comparison.OTHER_JAX, 'other', 'ours', {'device per core': ()}),
  ('pytorch', 'torch', 'pytorch',
   {'threads': (), '1 thread': ('1',), 'process per core': ('1',)}),
  ('fedjax', 'fedjax', 'fedjax_jit', {'threads': (), 'process per core': ()}),
  ('pfl', 'torch', 'pfl_research',
   {'threads': (), '1 thread': ('1',), 'process per core': ('1',)}),
)  # fmt: skip

_COLUMNS = (
  'workload',
  'clients',
  'epochs',
  'simulator',
  'arrangement',
  'steps_per_second',
  'of_floor',
  'ours_over_it',
  'over_fastest_peer',
  'rounds',
  'dropped',
  'quiet',
)

# Simulators that lack a work load's network.
_LACKING = {'W7': ('fedjax',), 'W8': ('fedjax',)}

# A simulator in an arrangement.
Key = tuple[str, str]


def start() -> dict[Key, processes.Peer]:
  """All simulators that are installed; says how to install the others."""
  pythons = {
    '': sys.executable,
    'other': _OTHER.value,
    'torch': _TORCH.value,
    'fedjax': _FEDJAX.value,
  }
  peers = {}
  for simulator, package, module, arrangements in _ARRANGEMENTS:
    if (python := pythons[package]) is None:
      continue
    for arrangement, arguments in arrangements.items():
      command = [python, '-m', f'benchmarks.peers.{module}', *arguments]
      per_core = arrangement == 'process per core'
      try:
        peers[simulator, arrangement] = processes.Peer(command, per_core)
      except (OSError, RuntimeError) as e:
        if package not in _INSTALL:
          raise
        print(
          f'{simulator} is left out ({command[0]}: {e}). To install it:\n'
          f'  {_INSTALL[package]}'
        )
        break
  return peers


def time_rounds(
  peers: dict[Key, processes.Peer], steps: dict[Key, int]
) -> list[comparison.Timed]:
  """Timed rounds of all simulators, which take turns."""
  pids = [pid for peer in peers.values() for pid in peer.pids]
  quiet: dict[Key, list[float]] = {key: [] for key in peers}
  dropped: dict[Key, list[float]] = {key: [] for key in peers}
  for _ in range(2 * _ROUNDS.value):
    for key, peer in peers.items():
      if len(quiet[key]) == _ROUNDS.value:
        continue
      activity = common.Activity(pids)
      rate = steps[key] / peer.round()
      noisy = activity.foreign_share() > common.MAX_FOREIGN_SHARE
      (dropped if noisy else quiet)[key].append(rate)
  return [
    comparison.Timed(
      *key, quiet[key] or dropped[key], len(dropped[key]), bool(quiet[key])
    )
    for key in peers
  ]


def measure(name: str, peers: dict[Key, processes.Peer]) -> list[dict[str, Any]]:
  """One row for each simulator in each arrangement, and one for the floor."""
  lacking = _LACKING.get(name, ())
  peers = {key: peer for key, peer in peers.items() if key[0] not in lacking}
  for tolerance, clients in ((2e-3, 0), (0.25, _num_clients(name))):
    steps, norms = {}, {}
    for key, peer in peers.items():
      steps[key] = peer.load(name, clients)
      peer.round()  # That of all clients also compiles and warms up.
      norms[key] = peer.norms()
    comparison.check_equal_work(name, norms, tolerance)
  workload = WORKLOADS[name]
  speeds = processes.ask_new([sys.executable, '-m', 'benchmarks.floor'], {'load': name})
  least = floor.steps_per_second(workload, speeds)
  case = {'workload': name, 'clients': clients, 'epochs': workload.epochs}
  rows = comparison.rows(case, time_rounds(peers, steps), least)
  rows.append(
    case
    | {
      'simulator': 'floor',
      'steps_per_second': least,
      'operations': floor.operations(workload),
      'bytes': floor.bytes_moved(workload),
      'cores': speeds,
    }
  )
  return rows


def _num_clients(name: str) -> int:
  """Clients of a work load, as --num_clients has it."""
  given = [*(_CLIENTS.default or []), *(_CLIENTS.value or [])]
  return int(dict(pair.split('=') for pair in given)[name])


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  peers = start()
  rows = []
  for name in _WORKLOADS.value:
    measured = measure(name, peers)
    print(common.table(measured, _COLUMNS), flush=True)
    rows += measured
  versions = {simulator: peer.versions for (simulator, _), peer in peers.items()}
  for peer in peers.values():
    peer.close()
  print('\nOurs, and every peer in its best arrangement:')
  print(common.table([row for row in rows if row.get('best')], _COLUMNS))
  jax.config.update('jax_platforms', 'cpu')
  rows.append({'versions': versions})
  common.save('peers', common.setup(), rows)


if __name__ == '__main__':
  app.run(main)
