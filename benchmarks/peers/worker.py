"""The side of a simulator in a process of its own: commands in, JSON lines out.

Imports nothing but NumPy, so that every peer can use it in its own environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks.workloads import WORKLOADS, Workload


class Runner(Protocol):
  """A federation loaded into a simulator."""

  def __init__(
    self, workload: Workload, x: np.ndarray, y: np.ndarray, sizes: np.ndarray
  ) -> None: ...

  def round(self) -> None:
    """One epoch of every client from `Workload.initial`, then their mean."""

  def params(self) -> dict[str, np.ndarray]:
    """The mean, by the names of `Workload.initial`, in any order of features."""


def serve(runner: Callable[..., Runner], versions: dict[str, str]) -> None:
  """Answers commands from standard input until it closes.

  {"load": "W1", "clients": 100} loads; {"probe": "W1"} runs one step of one
  client and gives the norm of each parameter's change; {"round": 1} runs and
  times a round.
  """
  out = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Libraries print too.

  def answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), file=out, flush=True)

  answer({'versions': versions})
  loaded: Runner | None = None
  for line in sys.stdin:
    command = json.loads(line)
    if 'probe' in command:
      workload = WORKLOADS[command['probe']]
      x, y = workload.probe()
      probe = runner(workload, x, y, np.array([len(y)]))
      probe.round()
      after, before = probe.params(), workload.initial()
      norms = {n: float(np.linalg.norm(after[n] - before[n])) for n in before}
      answer({'norms': norms})
    elif 'load' in command:
      workload = WORKLOADS[command['load']]
      x, y, sizes = workload.arrays(command['clients'])
      loaded = runner(workload, x, y, sizes)
      answer({'examples': len(y), 'steps': workload.steps(command['clients'])})
    else:
      assert loaded is not None
      began = time.perf_counter()
      loaded.round()
      seconds = time.perf_counter() - began
      after, before = loaded.params(), workload.initial()
      norms = {n: float(np.linalg.norm(after[n] - before[n])) for n in before}
      answer({'seconds': seconds, 'norms': norms})
