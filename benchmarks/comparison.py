r"""Seconds of a whole comparison: methods, each tuned, over seeds.

  python -m benchmarks.comparison

Six methods on the digits of scikit-learn, dealt to 23 clients anew for each seed, with
logistic regression: by default 5 rates x 3 seeds of tuning , then 5 seeds
with files of each run (`fj.compare`), 120 runs of 30 rounds. In turn one run after the
other (`runs_at_once=1`) and side by side (0), each in a process of its own that starts
with empty caches. `processor_seconds` are those of the process on all cores, which
other processes change less than its seconds.

  python3.11 -m venv .venv-torch && .venv-torch/bin/pip install torch==2.13.0

adds PyTorch's loop over clients (`peers/pytorch_table.py`), which does the same runs in
a process for each core. Both evaluate after the last round, and take as many SGD steps.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import app, flags

import fesem_jax as fj
from benchmarks import common
from benchmarks.peers import table

COLUMNS = (
  'loop', 'runs_at_once', 'methods', 'runs', 'rounds', 'seconds', 'processor_seconds',
  'foreign_share',
)  # fmt: skip

_METHODS = {
  'fed_avg': {},
  'fed_prox': {},
  'scaffold': {},
  'ditto': {},
  'fesem': {'num_clusters': 4},
  'hypo_cluster': {'num_clusters': 4, 'init_rounds': 2},
}
_LISTED = flags.DEFINE_list('methods', list(_METHODS), 'Of these methods.')
_ROUNDS = flags.DEFINE_integer('rounds', 30, 'Rounds of a run.')
_SEEDS = flags.DEFINE_integer('seeds', 5, 'Seeds that are reported.')
_TUNED = flags.DEFINE_integer('tuning_seeds', 3, 'Seeds of each rate.')
_RATES = flags.DEFINE_list('rates', ['0.01', '0.03', '0.1', '0.3', '1'], 'Of tuning.')
_AT_ONCE = flags.DEFINE_list('runs_at_once', ['1', '0'], 'Values to measure.')
_TORCH = flags.DEFINE_string(
  'torch_python', '.venv-torch/bin/python', 'Python with torch.'
)
_OWN = flags.DEFINE_bool('in_this_process', False, 'Measure the first value here.')


def _data(seed: int) -> tuple[fj.FederatedData, fj.FederatedData]:
  return fj.data.load('digits', partition='dirichlet', num_clients=23, seed=seed)


def _maker(name: str, model: fj.Model) -> Any:
  def make(learning_rate: float = 0.1) -> fj.Algorithm:
    optimizer = fj.local_optimizer('sgd', learning_rate)
    local = fj.local_training(model, optimizer)
    return fj.algorithms.build(name, local, **_METHODS[name])

  return make


def _methods() -> dict[str, Any]:
  train, _ = _data(0)
  model = fj.models.build('logistic', train.example_shape, train.num_classes)
  return {name: _maker(name, model) for name in _LISTED.value}


def _seeds() -> tuple[range, range]:
  """Seeds of tuning, and seeds that are reported."""
  return range(10_000, 10_000 + _TUNED.value), range(_SEEDS.value)


def measure(runs_at_once: int) -> dict[str, Any]:
  """Tunes and compares the methods once."""
  methods = _methods()
  options: dict[str, Any] = {
    'rounds': _ROUNDS.value, 'progress': False, 'eval_every': 0,
    'runs_at_once': runs_at_once,
  }  # fmt: skip
  tuned, seeds = _seeds()
  rates = [float(rate) for rate in _RATES.value]
  activity, began = common.Activity(), time.perf_counter()
  search = fj.Search({'learning_rate': rates}, tuned)
  with tempfile.TemporaryDirectory() as folder:
    comparison = fj.compare(
      methods, _data, seeds=seeds, search=search, workdir=folder, **options
    )
  used = resource.getrusage(resource.RUSAGE_SELF)
  runs = len(methods) * (len(rates) * len(tuned) + len(seeds))
  return {
    'loop': 'fesem_jax', 'runs_at_once': runs_at_once, 'methods': len(methods),
    'runs': runs, 'rounds': _ROUNDS.value,
    'seconds': round(time.perf_counter() - began, 1),
    'processor_seconds': round(used.ru_utime + used.ru_stime, 1),
    'foreign_share': round(activity.foreign_share(), 2),
    'accuracy': comparison.runs.groupby('method', observed=True)[
      'deployed.micro_accuracy'
    ].mean().to_dict(),
  }  # fmt: skip


def in_pytorch(python: str) -> dict[str, Any]:
  """The same runs in PyTorch, which take as many steps."""
  tuned, seeds = _seeds()
  rates = [float(rate) for rate in _RATES.value]
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  activity, began = common.Activity(), time.perf_counter()
  measured = table.measure(
    python, _LISTED.value, _data, rates, tuned, seeds, _ROUNDS.value
  )
  foreign, whole = activity.foreign_share(), time.perf_counter() - began
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  for name, make in _methods().items():
    there = {s for run, s in measured['steps'].items() if (run[0], run[2]) == (name, 0)}
    here = _ROUNDS.value * table.steps_here(make, _data(0))
    if there != {here}:
      raise AssertionError(f'{name}: {here} steps with seed 0, in PyTorch {there}.')
  processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
  foreign = max(0.0, foreign - processor / (whole * (os.cpu_count() or 1)))
  return {
    'loop': 'PyTorch', 'runs_at_once': measured['processes'],
    'methods': len(_LISTED.value), 'runs': len(measured['steps']),
    'rounds': _ROUNDS.value, 'seconds': round(measured['seconds'], 1),
    'processor_seconds': round(processor, 1),
    'foreign_share': round(foreign, 2), 'accuracy': measured['accuracy'],
    'versions': measured['versions'],
  }  # fmt: skip


def _in_own_process(runs_at_once: str) -> dict[str, Any]:
  """`measure` in a new process with an empty cache."""
  with tempfile.TemporaryDirectory() as cache:
    arguments = [flag for flag in sys.argv[1:] if '--runs_at_once' not in flag]
    done = subprocess.run(
      [
        sys.executable, '-m', 'benchmarks.comparison', *arguments, '--in_this_process',
        f'--runs_at_once={runs_at_once}',
      ],
      env=os.environ | {'JAX_COMPILATION_CACHE_DIR': cache},
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    )  # fmt: skip
  return json.loads(done.stdout.splitlines()[-1])


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  if _OWN.value:
    fj.setup_devices()
    print(json.dumps(measure(int(_AT_ONCE.value[0]))))
    return
  rows = []
  for runs_at_once in _AT_ONCE.value:
    rows.append(_in_own_process(runs_at_once))
    print(common.table(rows, COLUMNS), flush=True)
  fj.setup_devices()
  try:
    rows.append(in_pytorch(_TORCH.value))
    print(common.table(rows, COLUMNS), flush=True)
  except (OSError, RuntimeError) as e:
    print(f'PyTorch skipped, --torch_python={_TORCH.value}: {e}')
  for row in rows:
    print(row['loop'], {name: round(a, 3) for name, a in row['accuracy'].items()})
  common.save('comparison', common.setup(), rows)


if __name__ == '__main__':
  app.run(main)
