"""The runs of `benchmarks.comparison` in PyTorch, in a process for each core."""

import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fesem_jax as fj
from benchmarks.peers import processes

# (method, learning rate, number of the data)
Run = tuple[str, float, int]


def measure(
  python: str,
  methods: Sequence[str],
  data: Callable[[int], tuple[fj.FederatedData, fj.FederatedData]],
  rates: Sequence[float],
  tuned: Sequence[int],
  seeds: Sequence[int],
  rounds: int,
) -> dict[str, Any]:
  """Tunes and runs the methods once; the processes start within the time.

  Returns the seconds, those of tuning, versions, the SGD steps of each run by method,
  and the mean micro accuracy of each method over `seeds`.

  Raises:
    RuntimeError: a process ended; with its last words.
  """
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / 'data.npz'
    arrays, classes = _arrays(data, [*tuned, *seeds])
    np.savez(file, **arrays)  # type: ignore[arg-type]
    command = {
      'file': str(file), 'classes': classes, 'rounds': rounds, 'batch_size': 10,
    }  # fmt: skip
    began = time.perf_counter()
    each = processes.start([python, '-m', 'benchmarks.peers.pytorch_table'], True)
    try:
      tuning = [(m, rate, s) for m in methods for rate in rates for s in tuned]
      outcomes = _of_all(each, command, tuning)
      tuning_seconds = time.perf_counter() - began
      best = {m: _best(outcomes, m, rates, tuned) for m in methods}
      last = _of_all(each, command, [(m, best[m], s) for m in methods for s in seeds])
      seconds = time.perf_counter() - began
      versions = each[0].versions
    finally:
      for process in each:
        process.close()
  accuracy = {
    m: float(np.mean([last[m, best[m], s][0] for s in seeds])) for m in methods
  }
  return {
    'seconds': seconds, 'tuning_seconds': tuning_seconds, 'processes': len(each),
    'versions': versions, 'accuracy': accuracy,
    'steps': {run: steps for run, (_, steps) in (outcomes | last).items()},
  }  # fmt: skip


def _of_all(
  each: Sequence[processes.Process], command: dict[str, Any], runs: Sequence[Run]
) -> dict[Run, list[Any]]:
  """Accuracy and steps of each run, dealt to the processes in turn."""
  parts = [list(runs[i :: len(each)]) for i in range(len(each))]
  for process, own in zip(each, parts, strict=True):
    process.write(command | {'runs': own})
  answers = [process.read()['done'] for process in each]
  pairs = zip(parts, answers, strict=True)
  return {run: one for own, done in pairs for run, one in zip(own, done, strict=True)}


def _best(
  found: dict[Run, list[Any]], method: str, rates: Sequence[float], tuned: Sequence[int]
) -> float:
  """The rate of the best accuracy over the seeds of tuning."""
  return max(rates, key=lambda rate: sum(found[method, rate, s][0] for s in tuned))


def _arrays(
  data: Callable[[int], tuple[fj.FederatedData, fj.FederatedData]],
  numbers: Sequence[int],
) -> tuple[dict[str, np.ndarray], int]:
  """Arrays that `pytorch_table.answer` reads, and the number of classes."""
  arrays, classes = dict[str, np.ndarray](), 0
  for number in numbers:
    pair = data(number)
    classes = pair[0].num_classes
    for name, split in zip(('train', 'test'), pair, strict=True):
      x, y = zip(*map(split.client, range(split.num_clients)), strict=True)
      rows = np.concatenate(x).astype(np.float32) * np.float32(split.scale)
      arrays |= {
        f'{number}/{name}/x': rows.reshape(len(rows), -1),
        f'{number}/{name}/y': np.concatenate(y).astype(np.int64),
        f'{number}/{name}/sizes': np.asarray(split.sizes()),
      }
  return arrays, classes


def steps_here(
  make: Callable[..., fj.Algorithm], data: tuple[fj.FederatedData, fj.FederatedData]
) -> int:
  """SGD steps that a round of a method takes in this package."""

  class Count(fj.Callback):
    steps = 0

    def on_round(self, event: Any) -> None:
      self.steps += int(event.info.steps)

  count = Count()
  fj.simulate(
    make(), *data, rounds=1, eval_every=0, finetune_epochs=0, callbacks=[count],
    progress=False,
  )  # fmt: skip
  return count.steps
