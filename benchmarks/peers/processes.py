"""A simulator in one process, or in one for each core."""

import contextlib
import json
import math
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.workloads import WORKLOADS

_ROOT = pathlib.Path(__file__).parents[2]

# Files here are memory; elsewhere the system's cache of files comes close to it.
_MEMORY = '/dev/shm' if os.path.isdir('/dev/shm') else None


def cores() -> list[int]:
  """The cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def _on(core: int | None) -> Iterator[None]:
  """Processes started within may use this core only, where the system can say so."""
  if core is None or not hasattr(os, 'sched_setaffinity'):
    yield
    return
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, {core})
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


class Process:
  """A process that answers commands; see `worker.serve`.

  Attributes:
    pid: of the process.
    versions: of what runs in it.
  """

  def __init__(self, command: Sequence[str], core: int | None = None):
    self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115 - lives as long.
    # All on the CPU: the peers' environments know no other device.
    env = os.environ | {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'}
    if core is not None:
      env |= {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    with _on(core):
      self._process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self._errors,
        text=True,
      )
    self.pid = self._process.pid
    try:
      self.versions = self.read()['versions']
    except RuntimeError:
      self.close()
      raise

  def write(self, command: dict[str, Any]) -> None:
    """Sends a command."""
    assert self._process.stdin is not None
    print(json.dumps(command), file=self._process.stdin, flush=True)

  def read(self) -> Any:
    """Waits for an answer.

    Raises:
      RuntimeError: the process ended; with its last words.
    """
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      self._errors.seek(0)
      lines = self._errors.read().strip().splitlines() or ['it ended without a word']
      raise RuntimeError(lines[-1])
    return json.loads(line)

  def close(self) -> None:
    """Ends the process."""
    for pipe in (self._process.stdin, self._process.stdout):
      assert pipe is not None
      pipe.close()
    self._process.wait()
    self._errors.close()


def start(command: Sequence[str], per_core: bool) -> list[Process]:
  """Starts one process that may use all cores, or one for each core and on it.

  Raises:
    OSError: there is no such program.
    RuntimeError: a process ended; with its last words.
  """
  started: list[Process] = []
  try:
    for core in cores() if per_core else [None]:
      started.append(Process(command, core))
  except (OSError, RuntimeError):
    for process in started:
      process.close()
    raise
  return started


def ask(processes: Sequence[Process], command: dict[str, Any]) -> list[Any]:
  """The answers of processes that work on a command at the same time."""
  for process in processes:
    process.write(command)
  return [process.read() for process in processes]


class Peer:
  """A simulator; where it has several processes, they split the clients.

  Each process averages its own clients. The mean of all is then made in memory that
  the processes share, each adding up a part of the parameters, within the time of the
  round.

  Attributes:
    pids: of its processes.
    versions: of the simulator.
  """

  def __init__(self, command: Sequence[str], per_core: bool = False):
    self._processes = start(command, per_core)
    self.pids = [process.pid for process in self._processes]
    self.versions = self._processes[0].versions

  def load(self, name: str, clients: int) -> int:
    """Loads a work load.

    Args:
      name: of the work load.
      clients: how many; 0: one client that takes one step.

    Returns:
      SGD steps of a round.
    """
    parts = len(self._processes)
    size = sum(math.prod(shape) for shape in WORKLOADS[name].shapes().values())
    # The file's name goes as soon as all have mapped it, its memory with the processes.
    with tempfile.NamedTemporaryFile(prefix='fesem-bench-', dir=_MEMORY) as file:
      file.truncate(4 * size * parts)
      for part, process in enumerate(self._processes):
        command = {'load': name, 'clients': clients}
        if parts > 1:
          command |= {'memory': file.name, 'part': part, 'parts': parts}
        process.write(command)
      return sum(process.read()['steps'] for process in self._processes)

  def round(self) -> float:
    """Seconds of a round, the mean of all clients included."""
    began = time.perf_counter()
    ask(self._processes, {'do': 'round'})
    if len(self._processes) > 1:
      ask(self._processes, {'do': 'average'})
    return time.perf_counter() - began

  def norms(self) -> dict[str, float]:
    """Norms of each parameter at the start and of its change in the last round."""
    return ask(self._processes[:1], {'do': 'norms'})[0]

  def save(self, file: str) -> None:
    """Saves the start and the mean of the last round of one process: [2, P]."""
    ask(self._processes[:1], {'save': file})

  def close(self) -> None:
    """Ends the processes."""
    for process in self._processes:
      process.close()
