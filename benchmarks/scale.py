r"""A million clients on one machine: seconds, memory and files of whole runs.

  python -m benchmarks.scale --num_clients=1000000

Clients of work load W4 (64 features, MLP 64-32-10) with few examples each, in four
groups whose labels are permuted. Each case is a run of `simulate` in a process of its
own: FedAvg, FeSEM(4) streamed and IFCA(4) on all clients, and FeSEM(4) on 10,000
clients a round. A run stops after its first round and goes on to its last one, measures
a hundredth of the clients that took no part, and writes all that runs write. `peak_mib`
is what the process takes at most beyond imports and the data, of which there are two
copies: the caller's, and the run's in the order of its devices (`data_mib` is one).
`written_mib` are the files of the workdir, `report_mib` and `plots_mib` its page and
drawings; `row_seconds` is to read one client's figures and model back.
"""

import gc
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from absl import app, flags, logging

import fesem_jax as fj
from benchmarks import common
from benchmarks.workloads import WORKLOADS

_CLIENTS = flags.DEFINE_integer('num_clients', 1_000_000, 'M.')
_EXAMPLES = flags.DEFINE_integer('examples', 5, 'Training examples of a client.')
_CASES = flags.DEFINE_list(
  'cases', ['fed_avg', 'fesem', 'hypo_cluster', 'some'], 'Runs; see above.'
)
_SOME = flags.DEFINE_integer('clients_per_round', 10_000, "Of the case 'some'.")
_ROUNDS = flags.DEFINE_integer('rounds', 2, 'Rounds of a run.')
_DEVICES = flags.DEFINE_integer(
  'num_devices', 0, 'CPU devices; 0: one for each core that the process may use.'
)
_ONE_CASE = flags.DEFINE_string('one_case', '', 'Used by this program for itself.')

COLUMNS = (
  'case', 'clients', 'data_mib', 'peak_mib', 'start_seconds', 'seconds_per_round',
  'end_seconds', 'resume_seconds', 'page_seconds', 'written_mib', 'report_mib',
  'plots_mib', 'row_seconds', 'ari', 'unseen',
)  # fmt: skip

_OPTIONS: dict[str, dict[str, Any]] = {
  'fed_avg': {},
  'fesem': {'num_clusters': 4, 'client_state': 'streamed'},
  'hypo_cluster': {'num_clusters': 4},
}


def splits(num_clients: int, examples: int) -> tuple[Any, Any]:
  """Training and test split: random pixels, labels of a rule of each group."""
  workload, rng = WORKLOADS['W4'], np.random.default_rng(0)
  groups = np.arange(num_clients) % 4
  info = fj.ClientInfo(names=np.arange(num_clients), clusters=groups)
  rule = rng.standard_normal((*workload.example_shape, workload.num_classes))

  def split(each: int) -> fj.FederatedData:
    shape = (num_clients * each, *workload.example_shape)
    x = rng.integers(0, 256, shape, np.uint8)
    y = np.empty(len(x), np.int32)
    for rows in np.array_split(np.arange(len(x)), 64):
      scores = (x[rows].astype(np.float32) - 127.5) @ rule.astype(np.float32)
      moved = scores.argmax(1) + 3 * np.repeat(groups, each)[rows]
      y[rows] = moved % workload.num_classes
    return fj.FederatedData.from_arrays(
      x, y, np.full(num_clients, each), num_classes=workload.num_classes,
      scale=1 / 255, info=info,
    )  # fmt: skip

  return split(examples), split(1)


class Clock(fj.Callback):
  """When the parts of a run were done, by `time.perf_counter`."""

  def __init__(self) -> None:
    self.began = time.perf_counter()
    self.ready = self.began
    self.rounds: list[float] = []

  def on_start(self, event: Any) -> None:
    """The run is prepared."""
    self.ready = time.perf_counter()

  def on_round(self, event: Any) -> None:
    """A round is done, and measured."""
    self.rounds.append(time.perf_counter())


def mib(folder: pathlib.Path, pattern: str) -> float:
  """MiB of files."""
  return sum(p.stat().st_size for p in folder.rglob(pattern) if p.is_file()) / 2**20


def one_case(name: str) -> dict[str, Any]:
  """A run of this process, and what it took."""
  from fesem_jax import plots

  mesh = common.setup(_DEVICES.value)
  method = 'fesem' if name == 'some' else name
  everyone = splits(_CLIENTS.value, _EXAMPLES.value)
  (train, test), unseen = fj.data.hold_out_clients(*everyone, 0.01)
  del everyone
  local = common.training(WORKLOADS['W4'], mesh)
  algorithm = fj.algorithms.build(method, local, **_OPTIONS[method])
  gc.collect()
  common.reset_peak()
  before, clocks = common.status('VmRSS'), []
  with tempfile.TemporaryDirectory() as where:
    folder = pathlib.Path(where)

    def run(rounds: int) -> tuple[Any, float]:
      clocks.append(Clock())
      result = fj.simulate(
        algorithm, train, test, rounds=rounds, workdir=folder,
        clients_per_round=_SOME.value if name == 'some' else 0,
        callbacks=[clocks[-1]], progress=False, unseen=unseen,
      )  # fmt: skip
      return result, time.perf_counter()

    run(1)
    result, ended = run(_ROUNDS.value)
    peak = common.status('VmHWM') - before
    first, second = clocks
    resume = second.ready - second.began
    summary = result.summary
    del result
    gc.collect()
    began = time.perf_counter()
    plots.draw_run(folder)
    fj.write_report([folder], folder / 'report.html')
    page = time.perf_counter() - began
    began = time.perf_counter()
    saved = fj.load_run(folder)
    client = str(saved.clients.names[3])
    saved.clients.of(client)
    saved.params(client=client)
    row = time.perf_counter() - began
    all_peak = common.status('VmHWM') - before
    clusters = summary['clusters'] or {}
    size = sum(x.nbytes for s in (train, test) for x in (s.x, s.y)) / 2**20
    return {
      'case': name, 'clients': _CLIENTS.value, 'examples': _EXAMPLES.value,
      'before_mib': before / 2**20, 'data_mib': size,
      'peak_mib': peak / 2**20 - size, 'peak_with_page_mib': all_peak / 2**20 - size,
      'start_seconds': first.ready - first.began,
      'seconds_per_round': summary['timing']['seconds_per_round'],
      'round_with_evaluation_seconds': second.rounds[-1] - second.ready,
      'end_seconds': ended - second.rounds[-1], 'resume_seconds': resume,
      'page_seconds': page, 'row_seconds': row, 'written_mib': mib(folder, '*'),
      'clients_csv_mib': mib(folder, 'clients.csv'),
      'history_mib': mib(folder, 'history.*'), 'models_mib': mib(folder, 'models.npz'),
      'report_mib': mib(folder, 'report.html'), 'plots_mib': mib(folder, 'plots/*'),
      'largest_plot_mib': max(p.stat().st_size for p in folder.glob('plots/*')) / 2**20,
      'ari': clusters.get('ari'),
      'unseen': (summary['unseen'] or {}).get('micro_accuracy'),
      'deployed': summary['deployed']['micro_accuracy'],
    }  # fmt: skip


def main(argv: list[str]) -> None:
  """Runs every case in a process of its own."""
  del argv
  logging.set_verbosity(logging.WARNING)
  if _ONE_CASE.value:
    print(json.dumps(one_case(_ONE_CASE.value)))
    return
  rows: list[dict[str, Any]] = []
  mesh = common.setup(_DEVICES.value)
  for case in _CASES.value:
    given = [a for a in sys.argv[1:] if not a.startswith('--cases')]
    command = [sys.executable, '-m', 'benchmarks.scale', f'--one_case={case}', *given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(common.table(rows, COLUMNS), flush=True)
    common.save('scale', mesh, rows)


if __name__ == '__main__':
  app.run(main)
