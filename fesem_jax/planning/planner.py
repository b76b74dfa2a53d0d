"""What a run needs of each device, found by compiling it: no data, no hardware.

The start, a round and the evaluation are compiled for shapes alone, for the devices of
a mesh that may be of chips that are not there (`topologies`).
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fesem_jax.cohorts import placement, stratified
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.types import Cohort, FederatedData
from fesem_jax.planning.data_shapes import (
  Outline,
  Work,
  array_of,
  bytes_of,
  data_of,
  work_of,
)
from fesem_jax.run.evaluation import measure_with
from fesem_jax.run.program_memory import (
  Needs,
  bytes_of_shard,
  bytes_on_device,
  compiled_to_fit,
  is_on_host,
  needs_of,
  padded_bytes,
)
from fesem_jax.run.state_placement import of_clients, placed_state
from fesem_jax.training import shared_kernels
from fesem_jax.utils import progress_lines

# Programs of a run, in their order.
PARTS = ('start', 'round', 'evaluation')


class Planned(NamedTuple):
  """One compiled program of a run.

  Attributes:
    name: 'start', 'round' or 'evaluation'.
    needs: of each device.
    seconds: that compiling took.
    refused: whether the compiler refused it for its memory.
    text: of the compiled program; '' of one that was refused.
  """

  name: str
  needs: Needs
  seconds: float
  refused: bool = False
  text: str = ''


class Plan(NamedTuple):
  """What a run needs of each device.

  Attributes:
    programs: those of the run.
    model: bytes of one model.
    stack: bytes of the clients' models on a device; 0 where none are kept.
    state: bytes of the method's whole state on a device, the stack included.
    offloaded: bytes of the clients' models in the host's memory, for a device.
    data: bytes of both splits on a device.
    test: bytes of the test split, which only the evaluation is given.
    together: C, clients that train side by side on a device.
    clients: of a round on a device.
    work: of a local step; zeros where it was not counted.
    data_placement: 'replicated' or 'sharded'.
    padding: bytes that each layer of the clients' models takes beyond its numbers on a
      device, by its path in the state, as the round has them in memory; those with none
      are left out.
  """

  programs: tuple[Planned, ...]
  model: int
  stack: int
  state: int
  data: int
  test: int
  together: int
  clients: int
  work: Work = Work(0.0, 0.0, 0.0)
  data_placement: str = 'replicated'
  offloaded: int = 0
  padding: tuple[tuple[str, int], ...] = ()

  @property
  def round(self) -> Planned:
    """The round."""
    return next(p for p in self.programs if p.name == 'round')

  @property
  def peak(self) -> int:
    """Bytes of a device at the most, both splits included."""
    return max(map(self.peak_of, self.programs))

  def peak_of(self, program: Planned) -> int:
    """Bytes of a device while a program runs, both splits included."""
    return program.needs.peak + (0 if program.name == 'evaluation' else self.test)


def plan(
  algorithm: Algorithm,
  outline: Outline,
  clients_per_round: int = 0,
  finetune_epochs: int = 1,
  parts: Sequence[str] = PARTS,
  data_placement: str = 'replicated',
) -> Plan:
  """Compiles a run for the devices of `algorithm.local.mesh`.

  Args:
    algorithm: see `Algorithm`.
    outline: how much data there is.
    clients_per_round: S; 0 is every client.
    finetune_epochs: see `simulate`.
    parts: which of `PARTS` to compile.
    data_placement: 'replicated' or 'sharded'; see `placement.chosen`.

  Raises:
    UserError: if the method cannot be run so.
  """
  local = algorithm.local
  whole = NamedSharding(local.mesh, PartitionSpec())
  train, test = (
    data_of(outline, s, local.mesh, data_placement)
    for s in (outline.train, outline.test)
  )
  count = min(clients_per_round or outline.num_clients, outline.num_clients)
  everyone = count >= outline.num_clients
  places = -(-count // local.mesh.size)
  if data_placement == 'sharded':
    places = stratified.places_of_sample(count, train, None, local.mesh)
  padded = train.num_clients if everyone else places * local.mesh.size
  cohort = Cohort(
    array_of(whole, (padded,), np.int32), everyone, array_of(whole, (), np.int32)
  )
  key = jax.eval_shape(lambda: jax.random.key(0)).update(sharding=whole)
  programs = []

  def compiled(name: str, fn: Any, *args: Any, **options: Any) -> Any:
    began = time.perf_counter()
    with progress_lines.told(f'compiling the {name}'):
      made, needs = compiled_to_fit(jax.jit(fn, **options).lower(*args), args)
    seconds, text = time.perf_counter() - began, ''
    if made is not None:
      text = made.as_text() or ''
      needs = needs_of(made, text)
    programs.append(Planned(name, needs, seconds, made is None, text))
    return made

  state = placed_state(algorithm, train, key)
  placed = jax.tree.map(lambda s: s.sharding, state)
  if 'start' in parts:
    compiled('start', algorithm.init, key, train, out_shardings=placed)
  padding: tuple[tuple[str, int], ...] = ()
  if 'round' in parts:
    step = compiled(
      'round', algorithm.step, state, train, cohort, key,
      donate_argnums=0, out_shardings=(placed, None),
    )  # fmt: skip
    if step is not None:
      padding = _padding(state, step.input_formats[0][0], train)
  if 'evaluation' in parts:
    measure = measure_with(algorithm, finetune_epochs)
    compiled('evaluation', measure, state, train, test, key)
  found = summed_up(algorithm, state, train, test, padded, tuple(programs))
  work = work_of(local, outline, count / local.mesh.size)
  return found._replace(work=work, padding=padding)


def summed_up(
  algorithm: Algorithm,
  state: Any,
  train: FederatedData,
  test: FederatedData,
  num_clients: int,
  programs: tuple[Planned, ...],
) -> Plan:
  """A plan of programs that are compiled, but for the work of a step.

  Args:
    algorithm: see `Algorithm`.
    state: its state, or the shapes of it.
    train: training split on the devices, or its shapes.
    test: test split, likewise.
    num_clients: S with the empty places.
    programs: of the run.
  """
  local = algorithm.local
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  arrays = jax.tree.leaves(state)
  stacks = [s for s in arrays if of_clients(s, train)]
  return Plan(
    programs,
    model=sum(map(bytes_of, jax.tree.leaves(params))),
    stack=sum(map(bytes_on_device, stacks)),
    state=sum(map(bytes_on_device, arrays)),
    offloaded=sum(bytes_of_shard(x) for x in arrays if is_on_host(x)),
    data=sum(map(bytes_on_device, jax.tree.leaves((train, test)))),
    test=sum(map(bytes_on_device, jax.tree.leaves(test))),
    together=_together(algorithm, state, train, num_clients),
    clients=-(-num_clients // local.mesh.size),
    data_placement=placement.of(train),
  )


def _padding(
  state: Any, formats: Any, train: FederatedData
) -> tuple[tuple[str, int], ...]:
  """See `Plan.padding`."""
  found = []
  leaves = jax.tree.leaves_with_path(state)
  for (path, x), held in zip(leaves, jax.tree.leaves(formats), strict=True):
    if of_clients(x, train) and not is_on_host(x):
      extra = padded_bytes(x, held.layout) - bytes_of_shard(x)
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      found += [(name, extra)] if extra else []
  return tuple(found)


def _together(
  algorithm: Algorithm, state: Any, train: FederatedData, num_clients: int
) -> int:
  """How many clients train side by side, if they start from what they deploy."""
  local = algorithm.local
  starts = jax.eval_shape(algorithm.deployed, state, train)
  chosen = local.clients_per_chunk
  if starts.shared is not None and starts.own is None:
    chosen = shared_kernels.choose(local, starts, train, num_clients)[1]
  return min(chosen, -(-num_clients // local.mesh.size))
