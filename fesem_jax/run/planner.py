"""Memory and exchanges of a run, compiled from shapes, without the hardware."""

import dataclasses
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
from fesem_jax.core.arrangement import padded_clients
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.core.placement import width_of
from fesem_jax.core.selection import cohort_size
from fesem_jax.core.sharding import CLIENTS
from fesem_jax.core.types import Cohort
from fesem_jax.run import program_memory
from fesem_jax.run.program_memory import bytes_on_device
from fesem_jax.run.runner import Runner, Splits, is_stack, method_of
from fesem_jax.run.spec import Spec
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

# LEAF's own statistics, of which a tenth of each client's examples is to measure on:
# clients, examples of both splits and the most of a client, shape and classes.
LEAF = {
  'femnist': (3550, (724_737, 526), (80_526, 58), (28, 28), 62),
  'celeba': (9343, (180_259, 32), (20_029, 4), (84, 84, 3), 2),
}


class PlannedProgram(NamedTuple):
  """One compiled program of a run."""

  name: str  # one of `PARTS`
  memory: program_memory.ProgramMemory  # of each device
  seconds: float  # compile time
  text: str  # of the compiled program; '' if the compiler refused it for its memory


class Plan(NamedTuple):
  """Memory and programs of a run on each device."""

  programs: tuple[PlannedProgram, ...]
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
    beside = {'evaluation': 0}  # Its arguments include the test split.
    peaks = (p.memory.peak + beside.get(p.name, self.test_bytes) for p in self.programs)
    return max(peaks)


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


def zeros(
  num_clients: int,
  examples: int,
  most: int,
  example_shape: tuple[int, ...],
  num_classes: int,
  dtype: Any = np.uint8,
) -> FederatedData:
  """A split of a size for plans, without memory; a client has at most `most`."""
  return FederatedData(
    x=np.broadcast_to(np.zeros((), dtype), (examples, *example_shape)),
    y=np.broadcast_to(np.int32(0), examples),
    offsets=np.zeros(num_clients + 1, np.int32),
    client_ids=np.arange(num_clients, dtype=np.int32),
    num_classes=num_classes,
    scale=1 / 255 if np.dtype(dtype) == np.uint8 else 1.0,
    max_examples=most,
    info=ClientInfo(np.arange(num_clients).astype(str)),
  )


def leaf(name: str, num_clients: int = 0) -> Splits:
  """Splits of the sizes of one of `LEAF`, for a number of clients (0: all)."""
  count, *sizes, shape, classes = LEAF[name]
  number, share = num_clients or count, (num_clients or count) / count
  train, test = (
    zeros(number, max(1, round(examples * share)), most, shape, classes)
    for examples, most in sizes
  )
  return train, test


def arranged(split: FederatedData, mesh: Mesh, data_placement: str) -> FederatedData:
  """Shapes of a split after `arrangement.arrange`, without the padding of shards."""
  whole = rows = NamedSharding(mesh, PartitionSpec())
  count, examples, shards = padded_clients(split.num_clients, mesh), len(split.y), None
  if data_placement == 'sharded':
    rows = NamedSharding(mesh, PartitionSpec(CLIENTS))
    examples = -(-examples // mesh.size) * mesh.size
    shards = _array(rows, (mesh.size, 2), np.int32)
  client_array, groups = _array(whole, (count,), np.int32), split.groups
  x = _array(rows, (examples, width_of(split.example_shape, mesh)), split.x.dtype)
  return dataclasses.replace(
    split,
    x=x,
    y=_array(rows, (examples, *split.y.shape[1:]), split.y.dtype),
    offsets=_array(whole, (count + 1,), np.int32),
    client_ids=client_array,
    shard_rows=shards,
    flat_from=split.example_shape,
    groups=None if groups is None else Groups(client_array, groups.count),
    weights=None if split.weights is None else _array(whole, (count,), np.float32),
    attack=None,
    server_test=None,
  )


def _array(placed: Any, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)


def plan(
  algorithm: Algorithm,
  train: FederatedData,
  test: FederatedData,
  clients_per_round: float = 0,
  finetune_epochs: int = 1,
  parts: Sequence[str] = PARTS,
  data_placement: str = 'replicated',
) -> Plan:
  """Compiles `parts` of a run for the devices of `algorithm.local.mesh`."""
  local, mesh, clients = algorithm.local, algorithm.local.mesh, train.num_clients
  train, test = splits = [arranged(s, mesh, data_placement) for s in (train, test)]
  count = min(cohort_size(clients_per_round, clients) or clients, clients)
  places = -(-count // mesh.size)
  if data_placement == 'sharded':
    places = stratified.places_of_sample(count, train, None, mesh)
  everyone, whole = count >= clients, NamedSharding(mesh, PartitionSpec())
  padded = train.num_clients if everyone else places * mesh.size
  ids, first_round = (_array(whole, shape, np.int32) for shape in ((padded,), ()))
  spec = Spec(
    algorithm=algorithm, train=train, test=test, rounds=1,
    finetune_epochs=finetune_epochs,
  )  # fmt: skip
  cohort = Cohort(ids, everyone, first_round)
  runner = Runner(spec, method_of(spec), (train, test), cohort, (), 1, 1)
  programs = []
  for name, (_, function, args, options) in zip(PARTS, runner.calls, strict=True):
    if name in parts:
      began = time.perf_counter()
      options = {n: x for n, x in options.items() if n != 'compiler_options'}
      lowered = jax.jit(function, **options).lower(*args)
      compiled, memory = program_memory.try_to_compile(lowered, args)
      text = (compiled and compiled.as_text()) or ''
      programs.append(PlannedProgram(name, memory, time.perf_counter() - began, text))
  arrays, chunk = jax.tree.leaves(runner.shape), local.clients_per_chunk
  on_host = filter(program_memory.is_on_host, arrays)
  if runner.deployed.shared is not None and runner.deployed.personal is None:
    _, chunk = shared_kernels.choose(local, runner.deployed, train, padded)
  return Plan(
    tuple(programs),
    stack_bytes=sum(bytes_on_device(x) for x in arrays if is_stack(x, train)),
    state_bytes=sum(map(bytes_on_device, arrays)),
    offloaded_bytes=sum(map(program_memory.bytes_of_shard, on_host)),
    data_bytes=sum(map(bytes_on_device, jax.tree.leaves(splits))),
    test_bytes=sum(map(bytes_on_device, jax.tree.leaves(test))),
    clients_per_chunk=min(chunk, -(-padded // mesh.size)),
    clients_per_device=-(-padded // mesh.size),
  )
