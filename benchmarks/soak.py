r"""Long use of one process: memory, open files, threads and caches stay flat.

  python -m benchmarks.soak --rounds=5000 --compares=200

A tiny run of FeSEM(2) with a checkpoint in every tenth round, an evaluation in every
round, a history of its clients and callbacks; the same run, which drops the record of
each round and returns freed memory to the system at each measurement, so that only
memory that is never freed remains; then calls of `fj.compare`, each with newly built
methods and a workdir. What the process holds is read from /proc (Linux) along the way.
`slope_mib` is the growth of its resident memory, by least squares, over 1,000 rounds or
100 comparisons, without the first fifth, in which caches fill. `records_mib` is what
1,000 records take, which a run keeps for its result.
"""

import contextlib
import gc
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import optax
from absl import app, flags, logging

import fesem_jax as fj
from benchmarks import common
from fesem_jax.core import sharding
from fesem_jax.run import programs
from fesem_jax.run.callbacks.client_history import ClientHistory
from fesem_jax.run.results import metrics_file
from fesem_jax.utils import free_memory

_ROUNDS = flags.DEFINE_integer('rounds', 5000, 'Rounds of the run; 0: none.')
_COMPARES = flags.DEFINE_integer('compares', 200, 'Calls of fj.compare; 0: none.')

_POINTS = 50  # At which the process is looked at.

COLUMNS = (
  'part', 'times', 'seconds', 'slope_mib', 'records_mib', 'rss_first', 'rss_last',
  'files', 'threads', 'programs', 'cache',
)  # fmt: skip


def held(cache: pathlib.Path) -> dict[str, float]:
  """Memory and objects that this process holds now."""
  own = pathlib.Path('/proc/self')
  return {
    'rss': common.status('VmRSS') / 2**20,
    'files': len(os.listdir(own / 'fd')),
    'threads': len(os.listdir(own / 'task')),
    'programs': programs.shared().count,
    'cache': sum(1 for _ in cache.iterdir()),
  }


class Watch(fj.Callback):
  """Looks at the process in some rounds.

  Args:
    look: is called in them.
    every: rounds.
  """

  def __init__(self, look: Callable[[], None], every: int):
    self._look, self._every = look, every
    self.record_bytes = 0

  def on_round_end(self, event: Any) -> None:
    """Looks, where it is due."""
    if event.number % self._every == 0 and event.number:
      self._look()
      self.record_bytes = size_of(event.record)


def size_of(value: Any) -> int:
  """Bytes of a record, by `sys.getsizeof`; its keys are shared with others."""
  inner = value.values() if isinstance(value, dict) else value
  own = sys.getsizeof(value)
  return own + sum(map(size_of, inner)) if isinstance(value, dict | list) else own


def row(part: str, times: int, seen: list[dict[str, float]], unit: int) -> Any:
  """A row of the table; `unit` is of the slope."""
  late = seen[len(seen) // 5 :]
  at = np.linspace(times / len(seen), times, len(seen))[len(seen) // 5 :]
  slope = np.polyfit(at, [x['rss'] for x in late], 1)[0] * unit
  ends = {
    name: f'{late[0][name]:.0f} - {late[-1][name]:.0f}'
    for name in ('files', 'threads', 'programs', 'cache')
  }
  return {
    'part': part, 'times': times, 'slope_mib': float(slope),
    'rss_first': late[0]['rss'], 'rss_last': late[-1]['rss'], **ends,
    'seen': [{k: round(v, 1) for k, v in x.items()} for x in seen],
  }  # fmt: skip


def method(name: str, train: fj.FederatedData, **options: Any) -> fj.Algorithm:
  """A method on a tiny model."""
  model = fj.models.build('mlp', train.example_shape, train.num_classes, (8,))
  local = fj.local_training(model, optax.sgd(0.1))
  return fj.algorithms.build(name, local, **options)


@contextlib.contextmanager
def records_dropped() -> Iterator[None]:
  """Replaces a record by that of round 0 when the next one is written."""
  write = metrics_file.MetricsWriter.write

  def write_only(self: metrics_file.MetricsWriter, record: dict[str, Any]) -> None:
    write(self, record)
    if len(self.records) > 1:
      self.records[-2] = self.records[0]

  with mock.patch.object(metrics_file.MetricsWriter, 'write', write_only):
    yield


def long_run(
  data: Any, cache: pathlib.Path, folder: pathlib.Path, part: str, trim: bool
) -> Any:
  """The row of a run of many rounds.

  Args:
    data: of the run.
    cache: of its compiled programs.
    folder: that gets the workdir.
    part: name of the row.
    trim: whether freed memory is returned to the system at each measurement.
  """
  seen: list[dict[str, float]] = []
  every = max(1, _ROUNDS.value // _POINTS)

  def look() -> None:
    if trim:
      gc.collect()
      free_memory.give_back()
    seen.append(held(cache))

  watch = Watch(look, every)
  began = time.perf_counter()
  fj.simulate(
    method('fesem', data[0], num_clusters=2), *data, rounds=_ROUNDS.value,
    workdir=folder / part,
    callbacks=[watch, ClientHistory(50), fj.callbacks.Progress(False)],
  )  # fmt: skip
  measured = row(part, _ROUNDS.value, seen, 1000)
  measured['seconds'] = time.perf_counter() - began
  measured['records_mib'] = 1000 * watch.record_bytes / 2**20
  return measured


def comparisons(data: Any, cache: pathlib.Path, folder: pathlib.Path) -> Any:
  """The row of many comparisons."""
  seen: list[dict[str, float]] = []
  every = max(1, _COMPARES.value // _POINTS)
  began = time.perf_counter()
  for i in range(1, _COMPARES.value + 1):
    methods = {
      'fed_avg': method('fed_avg', data[0]),
      'fesem': method('fesem', data[0], num_clusters=2),
    }
    fj.compare(
      methods, data, rounds=2, seeds=[i],
      workdir=fj.Workdir(folder / f'{i}', portrait=False),
      callbacks=[fj.callbacks.Progress(False)],
    )  # fmt: skip
    if i % every == 0:
      gc.collect()
      seen.append(held(cache))
  measured = row('calls of compare', _COMPARES.value, seen, 100)
  measured['seconds'] = time.perf_counter() - began
  return measured


def main(argv: list[str]) -> None:
  """Runs all parts."""
  del argv
  logging.set_verbosity(logging.ERROR)
  with tempfile.TemporaryDirectory() as name:
    folder, cache = pathlib.Path(name), pathlib.Path(name) / 'xla'
    cache.mkdir()
    jax.config.update('jax_compilation_cache_dir', str(cache))
    fj.setup_devices(2)
    data = fj.data.load(
      'digits', partition='rotated', num_clients=8, examples_per_client=20
    )
    rows = []
    if _ROUNDS.value:
      rows.append(long_run(data, cache, folder, 'rounds of a run', trim=False))
      with records_dropped():
        rows.append(long_run(data, cache, folder, 'without records', trim=True))
      print(common.table(rows, COLUMNS), flush=True)
    if _COMPARES.value:
      rows.append(comparisons(data, cache, folder))
    print(common.table(rows, COLUMNS))
    common.save('soak', sharding.client_mesh(), rows)


if __name__ == '__main__':
  app.run(main)
