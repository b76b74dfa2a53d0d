r"""Seconds of a whole comparison: methods, each tuned, over seeds.

  python -m benchmarks.comparison

Six methods on the digits of scikit-learn, dealt to 23 clients anew for each seed, with
logistic regression: by default 5 rates x 3 seeds of tuning (`fj.tune`), then 5 seeds
with files of each run (`fj.compare`), 120 runs of 30 rounds. In turn one run after the
other (`runs_at_once=1`) and side by side (0), each in a process of its own that starts
with empty caches. `processor_seconds` are those of the process on all cores, which
other processes change less than its seconds.
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

COLUMNS = (
  'runs_at_once', 'methods', 'runs', 'rounds', 'seconds', 'processor_seconds',
  'tuning_seconds', 'foreign_share',
)  # fmt: skip

_METHODS = {
  'fed_avg': {},
  'fed_prox': {},
  'scaffold': {},
  'ditto': {},
  'fesem': {'num_clusters': 4},
  'hypo_cluster': {'num_clusters': 4, 'init_restarts': 1},
}
_LISTED = flags.DEFINE_list('methods', list(_METHODS), 'Of these methods.')
_ROUNDS = flags.DEFINE_integer('rounds', 30, 'Rounds of a run.')
_SEEDS = flags.DEFINE_integer('seeds', 5, 'Seeds that are reported.')
_TUNED = flags.DEFINE_integer('tuning_seeds', 3, 'Seeds of each rate.')
_RATES = flags.DEFINE_list('rates', ['0.01', '0.03', '0.1', '0.3', '1'], 'Of tuning.')
_AT_ONCE = flags.DEFINE_list('runs_at_once', ['1', '0'], 'Values to measure.')
_OWN = flags.DEFINE_bool('in_this_process', False, 'Measure the first value here.')


def _data(seed: int) -> tuple[fj.FederatedData, fj.FederatedData]:
  return fj.data.load('digits', partition='dirichlet', num_clients=23, seed=seed)


def _maker(name: str, model: fj.Model) -> Any:
  def make(learning_rate: float = 0.1) -> fj.Algorithm:
    optimizer = fj.local_optimizer('sgd', learning_rate)
    local = fj.local_training(model, optimizer)
    return fj.algorithms.build(name, local, **_METHODS[name])

  return make


def measure(runs_at_once: int) -> dict[str, Any]:
  """Tunes and compares the methods once."""
  train, _ = _data(0)
  model = fj.models.build('logistic', train.example_shape, train.num_classes)
  methods = {name: _maker(name, model) for name in _LISTED.value}
  options: dict[str, Any] = {
    'rounds': _ROUNDS.value, 'callbacks': [fj.callbacks.Progress(False)],
    'runs_at_once': runs_at_once,
  }  # fmt: skip
  tuned = range(10_000, 10_000 + _TUNED.value)
  rates = [float(rate) for rate in _RATES.value]
  activity, began = common.Activity(), time.perf_counter()
  choices = fj.tune(methods, _data, {'learning_rate': rates}, seeds=tuned, **options)
  tuning = time.perf_counter() - began
  with tempfile.TemporaryDirectory() as folder:
    fj.compare(
      methods, _data, seeds=range(_SEEDS.value), choices=choices, workdir=folder,
      **options,
    )  # fmt: skip
  used = resource.getrusage(resource.RUSAGE_SELF)
  runs = len(methods) * (len(rates) * len(tuned) + _SEEDS.value)
  return {
    'runs_at_once': runs_at_once, 'methods': len(methods), 'runs': runs,
    'rounds': _ROUNDS.value, 'seconds': round(time.perf_counter() - began, 1),
    'processor_seconds': round(used.ru_utime + used.ru_stime, 1),
    'tuning_seconds': round(tuning, 1),
    'foreign_share': round(activity.foreign_share(), 2),
  }  # fmt: skip


def _in_own_process(runs_at_once: str) -> dict[str, Any]:
  """`measure` in a new process with an empty cache."""
  with tempfile.TemporaryDirectory() as cache:
    given = [flag for flag in sys.argv[1:] if '--runs_at_once' not in flag]
    done = subprocess.run(
      [
        sys.executable, '-m', 'benchmarks.comparison', *given, '--in_this_process',
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
  common.save('comparison', common.setup(), rows)


if __name__ == '__main__':
  app.run(main)
