r"""Ours against other simulators: one table of ratios (`make bench`).

  python -m benchmarks.peers --torch_python=PYTHON --fedjax_python=PYTHON

All do the same work: the local epochs of every client from one model, then their mean,
weighted by examples. Before timing, one step of one client must change every parameter
by the same norm everywhere (0.2 %), and so must a whole round of all clients (25 %, W9
70 %, W10 50 %: the order of examples differs, and on random data much of the mean is
noise), so that work cannot be skipped. Rounds alternate between simulators; a round in
which other processes used the cores is dropped.

Ours is one process with a device per core. A peer runs in every arrangement that its
users could pick, and the ratio is to its best one:
  threads: one process whose operations may use all cores;
  1 thread: one process on one core;
  process per core: one process of one thread on each core. They split the clients, each
    averages its own, and they add up these means in shared memory, within the time.
FedJAX's own split over devices (`pmap`) is left out: its steps took as much processor
time as those of its `jit` on W1 and W2, and four times as much on W4.

Flower and BlazeFL, on W9 alone, have their own arrangements: Ray's actors of one core,
or one of all; clients in turn, in threads of one interpreter, or in processes. Both
read a client's tensors from memory. BlazeFL 3 needs Python 3.14; its threads need the
interpreter without a global lock, which is not measured.

With --first, a new process of each simulator loads the first work load and trains a
round: `first_seconds`, and `cached_seconds` where it finds its programs compiled.

Peers live in environments of their own:
  python3.12 -m venv .venv-torch && .venv-torch/bin/pip install torch==2.14.1 \
      pfl==0.6.0 blazefl==2.0.3 'flwr[simulation]==1.42.0'
  python3.11 -m venv .venv-fedjax && .venv-fedjax/bin/pip install \
      jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 fedjax==0.0.17 'numpy<2'

With --other_python, ours takes its turns with another version of JAX too:
  make install CONSTRAINTS=constraints-newest.txt PYTHON=python3.13  (in a clone)
  python -m benchmarks.peers --other_python=CLONE/.venv/bin/python
"""

import os
import sys
import tempfile
import time
from typing import Any

import jax
from absl import app, flags

from benchmarks import common
from benchmarks.peers import comparison, processes
from benchmarks.workloads import WORKLOADS

_WORKLOADS = flags.DEFINE_list(
  'workloads',
  ['W1', 'W6', 'W2', 'W3', 'W4', 'W7', 'W8', 'W9', 'W10'],
  'Of W1 .. W10.',
)
_SIMULATORS = flags.DEFINE_list('simulators', [], 'Peers to run; all if empty.')
_FIRST = flags.DEFINE_bool('first', False, 'Also time the first round of a process.')
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
  ['W1=40', 'W2=40', 'W3=600', 'W4=10000', 'W5=40', 'W6=16', 'W7=8', 'W8=16']
  + ['W9=20', 'W10=50'],
  'Clients of each work load; with a few, a whole round differs by more than 25 %.',
)

_INSTALL = {
  'torch': 'python3.12 -m venv .venv-torch && .venv-torch/bin/pip install '
           "torch==2.14.1 pfl==0.6.0 blazefl==2.0.3 'flwr[simulation]==1.42.0'",
  'fedjax': 'python3.11 -m venv .venv-fedjax && .venv-fedjax/bin/pip install '
            "jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.12 fedjax==0.0.17 'numpy<2'",
}  # fmt: skip

_CORES = str(len(processes.cores()))

# Simulator, package, module, and for each arrangement its arguments.
_ARRANGEMENTS = (
  (comparison.OURS, '', 'ours', {'device per core': ()}),
  (comparison.OTHER_JAX, 'other', 'ours', {'device per core': ()}),
  ('pytorch', 'torch', 'pytorch',
   {'threads': (), '1 thread': ('1',), 'process per core': ('1',)}),
  ('fedjax', 'fedjax', 'fedjax_jit', {'threads': (), 'process per core': ()}),
  ('pfl', 'torch', 'pfl_research',
   {'threads': (), '1 thread': ('1',), 'process per core': ('1',)}),
  ('flower', 'torch', 'flower', {'actor per core': ('1',), 'one actor': (_CORES,)}),
  ('blazefl', 'torch', 'blazefl',
   {'in turn': ('serial', _CORES), 'threads': ('threads', _CORES),
    'processes': ('processes', _CORES)}),
)  # fmt: skip

_COLUMNS = (
  'workload',
  'clients',
  'epochs',
  'simulator',
  'arrangement',
  'steps_per_second',
  'seconds',
  'processor_seconds',
  'first_seconds',
  'cached_seconds',
  'ours_over_it',
  'over_fastest_peer',
  'rounds',
  'dropped',
  'quiet',
)

# Simulators that lack a work load's network, or are not compared on it.
_ALONE = ('flower', 'blazefl')
_LACKING = dict.fromkeys(WORKLOADS, _ALONE) | {
  'W7': ('fedjax', *_ALONE),
  'W8': ('fedjax', *_ALONE),
  'W9': ('fedjax',),
  'W10': ('fedjax', *_ALONE),
}

# Of norms after a round; the order of examples alone changes ours by up to 0.38 (W9)
# and 0.28 (W10).
_ROUND_TOLERANCE = {'W9': 0.7, 'W10': 0.5}

# A simulator in an arrangement.
Key = tuple[str, str]


def start() -> tuple[dict[Key, processes.Peer], dict[Key, dict[str, float]]]:
  """Simulators that are installed, and their first rounds; how to install others."""
  pythons = {
    '': sys.executable,
    'other': _OTHER.value,
    'torch': _TORCH.value,
    'fedjax': _FEDJAX.value,
  }
  peers, first = {}, {}
  for simulator, package, module, arrangements in _ARRANGEMENTS:
    listed = [comparison.OURS, *_SIMULATORS.value]
    python = pythons[package]
    if python is None or (_SIMULATORS.value and simulator not in listed):
      continue
    for arrangement, arguments in arrangements.items():
      command = [python, '-m', f'benchmarks.peers.{module}', *arguments]
      per_core = arrangement == 'process per core'
      try:
        if _FIRST.value:
          first[simulator, arrangement] = first_round(command, per_core)
        peers[simulator, arrangement] = processes.Peer(command, per_core)
      except (OSError, RuntimeError) as e:
        if package not in _INSTALL:
          raise
        print(
          f'{simulator} is left out ({command[0]}: {e}). To install it:\n'
          f'  {_INSTALL[package]}'
        )
        break
  return peers, first


def first_round(command: list[str], per_core: bool) -> dict[str, float]:
  """Seconds of a new simulator until its first round ends, and with its cache."""
  name, seconds = _WORKLOADS.value[0], {}
  with tempfile.TemporaryDirectory() as cache:
    os.environ['JAX_COMPILATION_CACHE_DIR'] = cache
    for what in ('first_seconds', 'cached_seconds'):
      began = time.perf_counter()
      peer = processes.Peer(command, per_core)
      peer.load(name, _num_clients(name))
      peer.round()
      seconds[what] = time.perf_counter() - began
      peer.close()
      if not os.listdir(cache):
        break
    del os.environ['JAX_COMPILATION_CACHE_DIR']
  return seconds


def time_rounds(
  peers: dict[Key, processes.Peer], steps: dict[Key, int]
) -> list[comparison.Timed]:
  """Timed rounds of all simulators, which take turns."""
  pids = [pid for peer in peers.values() for pid in peer.pids]
  quiet: dict[Key, list[float]] = {key: [] for key in peers}
  dropped: dict[Key, list[float]] = {key: [] for key in peers}
  processor: dict[Key, list[float]] = {key: [] for key in peers}
  for _ in range(2 * _ROUNDS.value):
    for key, peer in peers.items():
      if len(quiet[key]) == _ROUNDS.value:
        continue
      activity = common.Activity(pids)
      rate = steps[key] / peer.round()
      noisy = activity.foreign_share() > common.MAX_FOREIGN_SHARE
      processor[key].append(activity.used()[1])
      (dropped if noisy else quiet)[key].append(rate)
  return [
    comparison.Timed(
      *(*key, quiet[key] or dropped[key], len(dropped[key]), bool(quiet[key])),
      processor=tuple(processor[key]),
    )
    for key in peers
  ]


def measure(name: str, peers: dict[Key, processes.Peer]) -> list[dict[str, Any]]:
  """One row for each simulator in each arrangement."""
  lacking = _LACKING.get(name, ())
  peers = {key: peer for key, peer in peers.items() if key[0] not in lacking}
  clients = _num_clients(name)
  for tolerance, count in ((2e-3, 0), (_ROUND_TOLERANCE.get(name, 0.25), clients)):
    steps, norms = {}, {}
    for key, peer in peers.items():
      steps[key] = peer.load(name, count)
      peer.round()  # That of all clients also compiles and warms up.
      norms[key] = peer.norms()
    comparison.check_equal_work(name, norms, tolerance)
  workload = WORKLOADS[name]
  case = {'workload': name, 'clients': clients, 'epochs': workload.epochs}
  case['steps'] = workload.steps(clients)
  return comparison.rows(case, time_rounds(peers, steps))


def _num_clients(name: str) -> int:
  """Clients of a work load, as --num_clients has it."""
  given = [*(_CLIENTS.default or []), *(_CLIENTS.value or [])]
  return int(dict(pair.split('=') for pair in given)[name])


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  peers, first = start()
  rows = []
  for name in _WORKLOADS.value:
    measured = measure(name, peers)
    for row in measured if name == _WORKLOADS.value[0] else ():
      row |= first.get((row['simulator'], row.get('arrangement', '')), {})
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
