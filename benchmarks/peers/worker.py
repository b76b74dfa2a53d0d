"""A simulator's side of the benchmark: commands in, JSON lines out.

Imports nothing but NumPy, so that every peer can use it in its own environment.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks.workloads import WORKLOADS, Workload


class Runner(Protocol):
  """A federation loaded into a simulator.

  Attributes:
    start: the model before a round: arrays in the order of `Workload.initial`, each
      in the simulator's own layout.
  """

  start: list[np.ndarray]

  def __init__(
    self, workload: Workload, x: np.ndarray, y: np.ndarray, sizes: np.ndarray
  ) -> None: ...

  def round(self) -> None:
    """The local epochs of every client from `start`, then the clients' mean."""

  def mean(self) -> list[np.ndarray]:
    """The mean of clients, weighted by their examples, laid out as `start`."""


class Worker:
  """All clients of a work load in a simulator, or the part of one process."""

  def __init__(self, runner: Callable[..., Runner]):
    self._new = runner
    self._runner: Runner | None = None

  def load(
    self,
    load: str,
    clients: int,
    memory: str | None = None,
    part: int = 0,
    parts: int = 1,
  ) -> dict[str, Any]:
    """Loads a work load.

    Args:
      load: its name.
      clients: how many of its clients; 0: one client that takes one step.
      memory: file of `parts` float32 models, which several processes share.
      part: which part of the clients is this process's.
      parts: processes that split the clients.

    Returns:
      SGD steps of this process in a round.
    """
    workload = WORKLOADS[load]
    if clients:
      x, y, sizes = workload.arrays(clients)
    else:
      workload = workload._replace(epochs=1)
      x, y = workload.probe()
      sizes = np.array([len(y)])
    steps, ends = workload.steps_of(sizes), np.cumsum(sizes)
    mine = split(steps, parts)[part]
    self._runner = None  # Frees the last work load before the next one is loaded.
    if len(mine):
      rows = np.concatenate([np.arange(ends[i] - sizes[i], ends[i]) for i in mine])
      self._runner = self._new(workload, x[rows], y[rows], sizes[mine])
    self._share = float(sizes[mine].sum() / sizes.sum())
    self._part, self._names = part, list(workload.initial())
    self._models = None
    if memory:
      self._models = np.memmap(memory, np.float32, 'r+').reshape(parts, -1)
    return {'steps': int(steps[mine].sum())}

  def round(self) -> dict[str, Any]:
    """Runs a round; of several processes, each leaves its share of the mean."""
    if self._runner is not None:
      self._runner.round()
    if self._models is None or self._runner is None:
      return {}  # A process without clients leaves the zeros of a new file.
    own, last = self._models[self._part], 0
    for value in self._runner.mean():
      first, last = last, last + value.size
      np.multiply(value.ravel(), self._share, out=own[first:last])
    return {}

  def average(self) -> dict[str, Any]:
    """Adds the shares of all processes; each adds a part of the parameters."""
    assert self._models is not None
    parts, size = self._models.shape
    mine = slice(self._part * size // parts, (self._part + 1) * size // parts)
    total = self._models[0, mine]
    for other in self._models[1:, mine]:
      np.add(total, other, out=total)
    return {}

  def norms(self) -> dict[str, float]:
    """Norms of each parameter at the start and of its change in the last round."""
    assert self._runner is not None
    start, mean = self._runner.start, self._runner.mean()
    if self._models is not None:
      ends = np.cumsum([x.size for x in start])
      mean = [x.reshape(s.shape) for x, s in zip(
        np.split(self._models[0], ends[:-1]), start, strict=True
      )]  # fmt: skip
    out = {}
    for name, before, after in zip(self._names, start, mean, strict=True):
      out[f'{name} at the start'] = float(np.linalg.norm(before))
      out[f'change of {name}'] = float(np.linalg.norm(after - before))
    return out

  def save(self, file: str) -> dict[str, Any]:
    """Saves the start and the mean of the last round: [2, P]."""
    assert self._runner is not None
    both = self._runner.start, self._runner.mean()
    np.save(file, [np.concatenate([x.ravel() for x in model]) for model in both])
    return {}

  def answer(self, command: dict[str, Any]) -> dict[str, Any]:
    """Answer of `serve` to a command."""
    if 'load' in command:
      return self.load(**command)
    if 'save' in command:
      return self.save(command['save'])
    return {'round': self.round, 'average': self.average, 'norms': self.norms}[
      command['do']
    ]()


def split(steps: np.ndarray, parts: int) -> list[np.ndarray]:
  """Deals clients to processes: the longest first, each to the one with least work.

  Args:
    steps: [M] work of each client.
    parts: processes.

  Returns:
    For each process the indices of its clients, ascending.
  """
  mine: list[list[int]] = [[] for _ in range(parts)]
  work = [0] * parts
  for i in np.argsort(-steps, kind='stable').tolist():
    part = work.index(min(work))
    mine[part].append(i)
    work[part] += int(steps[i])
  return [np.array(sorted(m), dtype=np.int64) for m in mine]


def serve(
  answer: Callable[[dict[str, Any]], dict[str, Any]], versions: dict[str, str]
) -> None:
  """Answers commands, a JSON object a line, from standard input until it closes.

  Args:
    answer: gives the answer to a command, such as `Worker.answer`.
    versions: of the simulator, the first line.
  """
  out = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Libraries print too.
  print(json.dumps({'versions': versions}), file=out, flush=True)
  for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=out, flush=True)
