"""Memory and exchanges of a run, compiled from shapes, without the hardware."""

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fesem_jax.core import sharding, stratified
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.hyperparameters import Arguments
from fesem_jax.core.selection import cohort_size
from fesem_jax.core.types import Cohort
from fesem_jax.run import program_memory
from fesem_jax.run.data_shapes import DataSize, array_of, data_of
from fesem_jax.run.program_memory import bytes_on_device
from fesem_jax.run.runner import Functions, is_stack, placed_state
from fesem_jax.training import shared_kernels
from fesem_jax.utils.errors import check

# So that libtpu asks no network for a TPU, and two processes can load it.
_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
PARTS = ('start', 'round', 'evaluation')


class PlannedProgram(NamedTuple):
  """One compiled program of a run."""

  name: str  # one of `PARTS`
  memory: program_memory.ProgramMemory  # of each device
  seconds: float  # compile time
  text: str  # of the compiled program; '' if the compiler refused it for its memory


class Plan(NamedTuple):
  """Memory and programs of a run on each device."""

  programs: tuple[PlannedProgram, ...]
  model_bytes: int  # of one model
  stack_bytes: int  # of the clients' models; 0 if the device keeps none
  state_bytes: int  # of the method's state, including the stack
  offloaded_bytes: int  # of the clients' models in the host's memory
  data_bytes: int  # of both splits
  test_bytes: int  # of the test split, an argument of the evaluation only
  clients_per_chunk: int  # C, clients that train side by side
  clients_per_device: int  # clients of a round on each device

  @property
  def round(self) -> PlannedProgram:
    """The program of a round."""
    return next(p for p in self.programs if p.name == 'round')

  @property
  def peak_bytes(self) -> int:
    """Peak memory of a device in bytes, including both splits."""
    peaks = {p.name: p.memory.peak + self.test_bytes for p in self.programs}
    peaks['evaluation'] = peaks.get('evaluation', 0) - self.test_bytes
    return max(peaks.values())


def mesh_of(topology: str, num_devices: int = 0) -> Mesh:
  """A mesh of the first chips (0: all) of a topology, as 'v5e:2x4' or 'local'."""
  if topology == 'local':
    return sharding.client_mesh(num_devices)
  right = ':' in topology and topology.partition(':')[0] in sharding.CHIPS
  check(right, f'topology: unknown value {topology!r:.30}; try one like v5e:2x4')
  for name, value in _ENVIRONMENT.items():
    if 'WARNING' in os.environ.get(name, 'WARNING'):  # JAX's value without a TPU.
      os.environ[name] = value
  devices = topologies.get_topology_desc(topology, 'tpu').devices
  count = len(devices)
  check(num_devices <= count, f'num_devices: {topology} has {count}; got {num_devices}')
  return Mesh(np.array(devices[: num_devices or count]), (sharding.CLIENTS,))


def plan(
  algorithm: Algorithm,
  size: DataSize,
  clients_per_round: float = 0,
  finetune_epochs: int = 1,
  parts: Sequence[str] = PARTS,
  data_placement: str = 'replicated',
) -> Plan:
  """Compiles `parts` of a run for the devices of `algorithm.local.mesh`."""
  local, mesh = algorithm.local, algorithm.local.mesh
  whole = NamedSharding(mesh, PartitionSpec())
  train, test = splits = [
    data_of(size, s, mesh, data_placement) for s in (size.train, size.test)
  ]
  count = cohort_size(clients_per_round, size.num_clients)
  count = min(count or size.num_clients, size.num_clients)
  everyone = count >= size.num_clients
  places = -(-count // mesh.size)
  if data_placement == 'sharded':
    places = stratified.places_of_sample(count, train, None, mesh)
  padded = train.num_clients if everyone else places * mesh.size
  ids = array_of(whole, (padded,), np.int32)
  cohort = Cohort(ids, everyone, array_of(whole, (), np.int32))
  key = jax.eval_shape(lambda: jax.random.key(0)).update(sharding=whole)
  arguments = Arguments()
  functions = Functions(algorithm, arguments, finetune_epochs=finetune_epochs)
  numbers = arguments.values({})
  of_start = key, train, numbers
  state = placed_state(algorithm, train, jax.eval_shape(functions.start, *of_start)[0])
  placed = jax.tree.map(lambda s: s.sharding, state)
  step = jax.jit(functions.step, donate_argnums=0, out_shardings=(placed, None, None))
  calls: dict[str, tuple[Any, ...]] = {
    'start': (jax.jit(functions.start, out_shardings=(placed, None)), *of_start),
    'round': (step, state, train, cohort, key, numbers),
    'evaluation': (jax.jit(functions.measure), state, *splits, key, numbers),
  }
  programs = []
  for name in parts:
    fn, *args = calls[name]
    began = time.perf_counter()
    compiled, memory = program_memory.try_to_compile(fn.lower(*args), args)
    text = (compiled and compiled.as_text()) or ''
    programs.append(PlannedProgram(name, memory, time.perf_counter() - began, text))
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  arrays = jax.tree.leaves(state)
  on_host = filter(program_memory.is_on_host, arrays)
  starts, chunk = (
    jax.eval_shape(algorithm.deployed, state, train),
    local.clients_per_chunk,
  )
  if starts.shared is not None and starts.personal is None:
    _, chunk = shared_kernels.choose(local, starts, train, padded)
  return Plan(
    tuple(programs),
    model_bytes=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)),
    stack_bytes=sum(bytes_on_device(x) for x in arrays if is_stack(x, train)),
    state_bytes=sum(map(bytes_on_device, arrays)),
    offloaded_bytes=sum(map(program_memory.bytes_of_shard, on_host)),
    data_bytes=sum(map(bytes_on_device, jax.tree.leaves(splits))),
    test_bytes=sum(map(bytes_on_device, jax.tree.leaves(test))),
    clients_per_chunk=min(chunk, -(-padded // mesh.size)),
    clients_per_device=-(-padded // mesh.size),
  )
