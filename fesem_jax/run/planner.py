"""Memory and exchanges of a run, compiled ahead of time.

The start, a round and the evaluation are compiled from shapes for the devices of a mesh
(`topologies`), without the hardware.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.core import stratified
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.run.data_shapes import DataSize, array_of, data_of
from fesem_jax.run.evaluation import measure_with
from fesem_jax.run.program_memory import (
  ProgramMemory,
  bytes_of_shard,
  bytes_on_device,
  is_on_host,
  try_to_compile,
)
from fesem_jax.run.rounds import step_of
from fesem_jax.run.state_placement import of_clients, placed_state
from fesem_jax.training import shared_kernels
from fesem_jax.utils import progress_lines
from fesem_jax.utils.display import in_bytes

# Programs of a run, in their order.
PARTS = ('start', 'round', 'evaluation')


class PlannedProgram(NamedTuple):
  """One compiled program of a run."""

  name: str  # one of `PARTS`
  memory: ProgramMemory  # of each device
  seconds: float  # compile time
  refused: bool = False  # whether the compiler refused it because of its memory
  text: str = ''  # of the compiled program; '' if it was refused


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
  data_placement: str = 'replicated'  # or 'sharded'

  @property
  def round(self) -> PlannedProgram:
    """The program of a round."""
    return next(p for p in self.programs if p.name == 'round')

  @property
  def peak_bytes(self) -> int:
    """Peak memory of a device in bytes, including both splits."""
    return max(map(self.peak_of, self.programs))

  def peak_of(self, program: PlannedProgram) -> int:
    """Peak memory of a device while a program runs, including both splits."""
    return program.memory.peak + (
      0 if program.name == 'evaluation' else self.test_bytes
    )


def plan(
  algorithm: Algorithm,
  size: DataSize,
  clients_per_round: int = 0,
  finetune_epochs: int = 1,
  parts: Sequence[str] = PARTS,
  data_placement: str = 'replicated',
) -> Plan:
  """Compiles a run for the devices of `algorithm.local.mesh`.

  Args:
    algorithm: the method to run.
    size: of the data.
    clients_per_round: S; 0 is every client.
    finetune_epochs: see `simulate`.
    parts: programs to compile, of `PARTS`.
    data_placement: 'replicated' or 'sharded'; see `placement.chosen`.
  """
  mesh = algorithm.local.mesh
  whole = NamedSharding(mesh, PartitionSpec())
  train, test = (
    data_of(size, split, mesh, data_placement) for split in (size.train, size.test)
  )
  count = min(clients_per_round or size.num_clients, size.num_clients)
  everyone = count >= size.num_clients
  places = -(-count // mesh.size)
  if data_placement == 'sharded':
    places = stratified.places_of_sample(count, train, None, mesh)
  padded = train.num_clients if everyone else places * mesh.size
  cohort = Cohort(
    array_of(whole, (padded,), np.int32), everyone, array_of(whole, (), np.int32)
  )
  key = jax.eval_shape(lambda: jax.random.key(0)).update(sharding=whole)
  state = placed_state(algorithm, train, key)
  placed = jax.tree.map(lambda s: s.sharding, state)
  programs = []

  def add(name: str, fn: Any, *args: Any, **options: Any) -> None:
    if name not in parts:
      return
    began = time.perf_counter()
    with progress_lines.waiting_for(f'compiling the {name}'):
      compiled, memory = try_to_compile(jax.jit(fn, **options).lower(*args), args)
    seconds, text = time.perf_counter() - began, compiled and compiled.as_text()
    programs.append(PlannedProgram(name, memory, seconds, compiled is None, text or ''))

  add('start', algorithm.init, key, train, out_shardings=placed)
  add(
    'round', step_of(algorithm), state, train, cohort, key,
    donate_argnums=0, out_shardings=(placed, None),
  )  # fmt: skip
  add('evaluation', measure_with(algorithm, finetune_epochs), state, train, test, key)
  params = jax.eval_shape(algorithm.local.model.init, jax.random.key(0))
  arrays = jax.tree.leaves(state)
  return Plan(
    tuple(programs),
    model_bytes=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)),
    stack_bytes=sum(bytes_on_device(x) for x in arrays if of_clients(x, train)),
    state_bytes=sum(map(bytes_on_device, arrays)),
    offloaded_bytes=sum(bytes_of_shard(x) for x in arrays if is_on_host(x)),
    data_bytes=sum(map(bytes_on_device, jax.tree.leaves((train, test)))),
    test_bytes=sum(map(bytes_on_device, jax.tree.leaves(test))),
    clients_per_chunk=_clients_per_chunk(algorithm, state, train, padded),
    clients_per_device=-(-padded // mesh.size),
    data_placement=data_placement,
  )


def _clients_per_chunk(
  algorithm: Algorithm, state: Any, train: FederatedData, num_clients: int
) -> int:
  """Clients that train side by side, if they start from their deployed models."""
  local = algorithm.local
  starts = jax.eval_shape(algorithm.deployed, state, train)
  chosen = local.clients_per_chunk
  if starts.shared is not None and starts.own is None:
    _, chosen = shared_kernels.choose(local, starts, train, num_clients)
  return min(chosen, -(-num_clients // local.mesh.size))


def advice(plan: Plan, memory: int, num_devices: int) -> list[str]:
  """One sentence for each flag that makes a run fit; none if it fits already.

  `memory` is the number of bytes of each of the `num_devices` devices.
  """
  refused = any(p.refused for p in plan.programs)
  if plan.peak_bytes <= memory and not refused:
    return []
  if refused:  # The compiler keeps some memory for itself.
    memory = min(memory, plan.peak_bytes - 1)
  start, worst = plan.programs[0], max(plan.programs, key=plan.peak_of)
  taken = start.memory.temporaries
  room = memory - plan.peak_of(start) + taken
  if start.name == 'start' and 0 < room < taken:
    return [
      f'--init_clients: the start needs {in_bytes(taken)} for the models of the first '
      f'clustering; {100 * room / taken:.0f} % of them fit.'
    ]
  sentences = []
  each = worst.memory.temporaries / max(1, plan.clients_per_chunk)
  room = memory - plan.peak_of(worst) + worst.memory.temporaries
  if each <= room:
    sentences.append(
      f'--clients_per_chunk={int(room / each)}: training a client needs '
      f'{in_bytes(each)} of the {in_bytes(room)} available.'
    )
  excess = plan.peak_bytes - memory
  on_each = plan.data_bytes / num_devices
  if plan.data_placement == 'replicated' and excess <= plan.data_bytes - on_each:
    sentences.append(
      f'--data_placement=sharded: each device holds {in_bytes(on_each)} of data '
      f'instead of {in_bytes(plan.data_bytes)}.'
    )
  if plan.stack_bytes and excess <= plan.stack_bytes:
    stack = in_bytes(plan.stack_bytes)
    sentences += [
      f'--client_state=offloaded (FeSEM, NonFed, Ditto, SCAFFOLD, FedDyn): {stack} of '
      'local models move to host memory.',
      f'--client_state=streamed (FeSEM only): {stack} of local models are not stored.',
    ]
  if excess < plan.stack_bytes:
    whole = plan.stack_bytes * num_devices
    devices = math.ceil(whole / (plan.stack_bytes - excess))
    sentences.append(
      f'{devices} chips instead of {num_devices}: each holds '
      f'{in_bytes(whole / devices)} of local models.'
    )
  return sentences or ['A smaller model, or chips with more memory.']
