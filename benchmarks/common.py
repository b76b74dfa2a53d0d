"""Functions that the benchmarks share: timing, quiet rounds, and result files."""

import contextlib
import datetime
import json
import math
import os
import pathlib
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from benchmarks.workloads import Workload
from fesem_jax import algorithms, models
from fesem_jax.core import local_training as local_module
from fesem_jax.core import placement, prng_streams, sharding
from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.run.program_memory import memory_of
from fesem_jax.run.programs import run_once
from fesem_jax.run.runner import placed_state
from fesem_jax.utils import provenance
from fesem_jax.utils.atomic_files import write_atomically

RESULTS = pathlib.Path(__file__).parent / 'results'

# In the text of a compiled program.
_TO_HOST = re.compile(
  r' (infeed|outfeed|send|recv)\(|custom_call_target="[^"]*(?:callback|host)[^"]*"'
)
_ARRAY = re.compile(r'(%[\w.-]+) = \(?\w+\[([\d,]*)\]')
_GATHER = re.compile(r' gather\((%[\w.-]+)')
_PRODUCT = re.compile(r' (?:convolution|dot)\(.*')

# A round is dropped if other processes used more than this share of the cores.
MAX_FOREIGN_SHARE = 0.05

# Shorter calls are timed several at a time: processor time comes in ticks of 10 ms.
_LEAST_SECONDS = 0.5


def setup(num_devices: int = 0) -> Mesh:
  """The devices of a benchmark; nothing comes from the compilation cache."""
  sharding.setup_devices(num_devices)
  jax.config.update('jax_enable_compilation_cache', False)
  return sharding.client_mesh(num_devices)


class Activity:
  """Processor time used by this machine and by processes with their descendants.

  On systems without /proc nothing is known and no round is dropped.
  """

  def __init__(self, pids: Sequence[int] = ()):
    self._pids = (os.getpid(), *pids)
    self._start = self._read()
    self._began = time.perf_counter()

  def _read(self) -> tuple[float, float] | None:
    tick = os.sysconf('SC_CLK_TCK')
    try:
      fields = pathlib.Path('/proc/stat').read_text().split('\n', 1)[0].split()[1:]
    except OSError:
      return None
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    parents, used = {}, {}
    for file in pathlib.Path('/proc').glob('[0-9]*/stat'):
      with contextlib.suppress(OSError):  # It has ended.
        stat = file.read_text().rsplit(')', 1)[1].split()
        pid = int(file.parent.name)
        parents[pid], used[pid] = int(stat[1]), sum(map(int, stat[11:15]))

    def is_own(pid: int) -> bool:
      return pid in self._pids or (pid in parents and is_own(parents[pid]))

    process_seconds = sum(time for pid, time in used.items() if is_own(pid))
    total = user + nice + system + irq + softirq + steal
    return total / tick, process_seconds / tick

  def used(self) -> tuple[float, float]:
    """Processor seconds since the start: of the machine, and of the processes."""
    now = self._read()
    if now is None or self._start is None:
      return 0.0, 0.0
    return now[0] - self._start[0], now[1] - self._start[1]

  def foreign_share(self) -> float:
    """Share of the cores' time since the start that other processes used."""
    total, process_seconds = self.used()
    seconds = max(time.perf_counter() - self._began, 1e-9)
    return max(0.0, total - process_seconds) / (seconds * (os.cpu_count() or 1))


def calls_to_time(fn: Callable[[], Any]) -> int:
  """How many calls of `fn` a timing takes, by one call, which warms up as well."""
  began = time.perf_counter()
  jax.block_until_ready(fn())
  return math.ceil(_LEAST_SECONDS / (time.perf_counter() - began))


def repeat(
  fn: Callable[[], Any], times: int, warmups: int = 1, calls: int = 1
) -> dict[str, Any]:
  """Seconds of `fn`, whose result is waited for: median, least and all.

  A timing lasts `calls` calls; after a warm-up, as many as fill half a second.

  Rounds in which other processes used the cores are dropped and tried again, up
  to `times` more times; what is left when none was quiet says so.
  """
  for _ in range(warmups):
    calls = calls_to_time(fn)
  samples: list[float] = []
  dropped: list[float] = []
  while len(samples) < times and len(samples) + len(dropped) < 2 * times:
    activity = Activity()
    began = time.perf_counter()
    for _ in range(calls):
      jax.block_until_ready(fn())
    seconds = (time.perf_counter() - began) / calls
    (dropped if activity.foreign_share() > MAX_FOREIGN_SHARE else samples).append(
      seconds
    )
  quiet = bool(samples)
  used = samples or dropped
  return {
    'median_seconds': float(np.median(used)),
    'least_seconds': min(used),
    'rounds': len(used),
    'dropped': len(dropped) if quiet else 0,
    'quiet': quiet,
  }


def federated(workload: Workload, num_clients: int, mesh: Any) -> FederatedData:
  """The work load's data on the devices."""
  return place(workload, *workload.arrays(num_clients), mesh)


def place(workload: Workload, x: Any, y: Any, sizes: Any, mesh: Any) -> FederatedData:
  """A work load's arrays, dealt to the devices."""
  scale = 1 / 255 if x.dtype == np.uint8 else 1.0
  data = FederatedData.from_arrays(
    x, y, sizes, num_classes=workload.num_classes, scale=scale
  )
  multiple = -(-len(sizes) // mesh.size) * mesh.size
  dealt = data.reorder(sharding.deal(sizes), multiple)
  return placement.place(dealt, mesh, 'replicated')


class Method:
  """A method with its state, ready for another round.

  Attributes:
    compile_seconds: of the round.
    needs: memory of the compiled round on each device.
  """

  def __init__(
    self,
    name: str,
    options: dict[str, Any],
    local: local_module.LocalTraining,
    train: FederatedData,
  ):
    self._algorithm = algorithms.build(name, local, **options)
    key = jax.random.key(0)
    init_key, self._key = sharding.replicate(
      [prng_streams.folded(key, s) for s in (prng_streams.INIT, prng_streams.ROUNDS)],
      local.mesh,
    )
    algorithm, cohort = self._algorithm, everyone(train)
    init, placed = start_of(algorithm, train, init_key)
    self._state = jax.block_until_ready(init(init_key, train))
    self._rest, self._done = (train, cohort), 0
    began = time.perf_counter()
    self._step = round_of(algorithm, placed, train, cohort, self._key)
    self.compile_seconds = time.perf_counter() - began
    self.needs = memory_of(self._step)

  def part_centers(self) -> None:
    """Puts random models in the place of the method's centers."""
    old = self._state.centers
    keys = jax.random.split(jax.random.key(1), jax.tree.leaves(old)[0].shape[0])
    new = jax.vmap(self._algorithm.local.model.init)(keys)
    new = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), new, old)
    self._state = self._state._replace(centers=new)

  def state_bytes(self) -> int:
    """Bytes of the state, without the data."""
    return sum(x.nbytes for x in jax.tree.leaves(self._state))

  def round(self) -> RoundInfo:
    """Runs the next round, as `simulate` does."""
    self._done += 1
    self._state, info = run_round(
      self._algorithm, self._step, self._state, *self._rest, self._key, self._done
    )
    return info


def start_of(algorithm: Any, train: FederatedData, key: jax.Array) -> tuple[Any, Any]:
  """The start of a method, as a run compiles it, and shapes of its state."""
  shapes = jax.eval_shape(algorithm.init, key, train)
  state = placed_state(algorithm, train, shapes)
  placed = jax.tree.map(lambda x: x.sharding, state)
  options = run_once(algorithm.local, train)
  return jax.jit(algorithm.init, out_shardings=placed, **options), state


def round_of(algorithm: Any, state: Any, *rest: Any) -> Any:
  """A compiled round that does not report each client, as in a run."""

  def step(*args: Any) -> tuple[Any, RoundInfo]:
    state, info = algorithm.step(*args)
    return state, info._replace(clients=None)

  placed = jax.tree.map(lambda x: x.sharding, state), None
  return (
    jax.jit(step, donate_argnums=0, out_shardings=placed).lower(state, *rest).compile()
  )


def run_round(
  algorithm: Any, step: Any, state: Any, train: Any, cohort: Any, key: Any, number: int
) -> tuple[Any, RoundInfo]:
  """Runs a round, counted from 1, and what is decided on the host after it."""
  state, info = step(state, train, cohort, prng_streams.folded(key, number))
  if algorithm.between is not None:
    placed = jax.tree.map(lambda x: x.sharding, state)
    state, info = algorithm.between(state, info)
    state = sharding.place(state, placed)
  return state, info


def training(
  workload: Workload, mesh: Any, clients_per_chunk: int = 0
) -> local_module.LocalTraining:
  """The local training of the work load."""
  model = models.build(
    workload.network, workload.example_shape, workload.num_classes, workload.hidden
  )
  return local_module.local_training(
    model,
    optax.sgd(workload.learning_rate),
    batch_size=workload.batch_size,
    epochs=workload.epochs,
    machine=local_module.Machine(clients_per_chunk=clients_per_chunk, mesh=mesh),
  )


def params_of(workload: Workload, model: Any) -> Any:
  """`Workload.initial` in the form of the model's parameters."""
  initial = workload.initial()
  like = flatten_dict(jax.eval_shape(model.init, jax.random.key(0)), sep='/')
  if {name: x.shape for name, x in like.items()} != workload.shapes():
    raise AssertionError(f'{workload.name}: the model has other parameters.')
  return unflatten_dict({n: jnp.asarray(x) for n, x in initial.items()}, sep='/')


def everyone(data: FederatedData) -> Cohort:
  """Full participation."""
  return Cohort(np.arange(data.num_clients, dtype=np.int32), everyone=True)


def useful_share(steps: np.ndarray, num_devices: int, chunk: int) -> float:
  """Share of computed client steps that are not padding.

  Args:
    steps: [M] local steps of each client, as dealt to contiguous devices.
    num_devices: D.
    chunk: clients side by side.
  """
  computed = 0
  for mine in np.split(steps, num_devices):
    ordered = np.sort(mine)[::-1]
    size = -(-len(mine) // -(-len(mine) // chunk))  # As `client_map` does.
    computed += size * ordered[::size].sum()  # Each lasts as its longest client.
  return float(steps.sum() / computed)


def calls_to_host(text: str) -> list[str]:
  """Instructions in the text of a compiled program that wait for the host."""
  return sorted({match.group().strip() for match in _TO_HOST.finditer(text)})


def gathers_of_models(
  text: str, layers: set[tuple[int, ...]], more_than: int
) -> list[str]:
  """Stacks of models that a compiled program gathers rows of.

  Args:
    text: of the program.
    layers: shapes of the layers to look for, of one model.
    more_than: models, such as the centers, that a stack may have.

  Returns:
    Shapes of the stacked layers, as '100,784,200'.
  """
  names = dict(_ARRAY.findall(text))
  shapes = {names.get(name, '') for name in _GATHER.findall(text)}
  dims = {shape: tuple(map(int, filter(None, shape.split(',')))) for shape in shapes}
  return sorted(s for s, d in dims.items() if d[1:] in layers and d[0] > more_than)


def products_by_precision(text: str) -> dict[str, int]:
  """Precision of the factors -> products on the matrix unit of a compiled program."""
  counts: dict[str, int] = {}
  for product in _PRODUCT.findall(text):
    match = re.search(r'operand_precision=\{(\w+)', product)
    kind = match[1] if match else 'default'
    counts[kind] = counts.get(kind, 0) + 1
  return counts


def status(field: str) -> int:
  """Bytes of this process: VmRSS resident now, VmHWM at most since the reset."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith(field + ':'):
      return 1024 * int(line.split()[1])
  raise OSError(f'/proc/self/status has no {field}.')


def reset_peak() -> None:
  """Makes VmHWM start from what is resident now (Linux)."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')


def processor() -> str:
  """Name of the CPU (Linux)."""
  text = pathlib.Path('/proc/cpuinfo').read_text()
  name = re.search(r'^model name\s*:\s*(.+)', text, re.MULTILINE)
  return name[1] if name else platform.processor()


def where(mesh: Any) -> dict[str, Any]:
  """Machine, versions and date of a result file."""
  described = provenance.describe(mesh)
  return {
    'date': datetime.date.today().isoformat(),
    'processor': processor(),
    'cores': os.cpu_count(),
    'device': described['device'],
    'versions': described['versions'],
    'commit': described['commit'],
  }


def save(name: str, mesh: Any, rows: list[dict[str, Any]]) -> pathlib.Path:
  """Adds a run to results/NAME_PLATFORM.json and says where.

  It replaces an earlier run of the same flags on the same processor. Paths of other
  Pythons stay out of the file.
  """
  chosen = ' '.join(a for a in sys.argv[1:] if '_python' not in a)
  run = where(mesh) | {'flags': chosen, 'rows': rows}
  file = RESULTS / f'{name}_{mesh.devices.flat[0].platform}.json'
  runs = json.loads(file.read_text()).get('runs', []) if file.exists() else []

  def same(r):
    return all(r[k] == run[k] for k in ('flags', 'processor'))

  RESULTS.mkdir(exist_ok=True)
  runs = [*(r for r in runs if not same(r)), run]
  write_atomically(file, json.dumps({'runs': runs}, indent=1) + '\n')
  print(f'In {file}')
  return file


def table(rows: list[dict[str, Any]], columns: Sequence[str]) -> str:
  """Rows as aligned text."""
  import pandas  # Not in the memory of what is measured.

  shown = [[_text(row.get(c)) for c in columns] for row in rows]
  return pandas.DataFrame(shown, columns=columns).to_string(index=False)


def _text(value: Any) -> str:
  if value is None:
    return ''
  if not isinstance(value, float):
    return str(value)
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.3g}'
