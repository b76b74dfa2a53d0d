"""A run among many: its arguments, whether others can be beside it, its outcome."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax

from fesem_jax.core import batching, offloading, sharding, side_by_side
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data.attacks import backdoor_of
from fesem_jax.run.callbacks.calls import Callbacks
from fesem_jax.run.checks import check_run
from fesem_jax.run.one_run import run_one
from fesem_jax.run.over_runs import looks_at_states
from fesem_jax.run.preparation import Prepared, prepare
from fesem_jax.run.program_memory import bytes_on_device
from fesem_jax.run.programs import Programs
from fesem_jax.run.results.result import Result
from fesem_jax.run.spec import Spec
from fesem_jax.run.timeline import Timeline, placement_of
from fesem_jax.utils import processes
from fesem_jax.utils.errors import Diverged, UserError

# What a run came to: its result, or the exception that `simulate` would have raised.
Outcome = Result | Diverged | UserError

# Of a `Spec`: what runs must have in common to be put together.
_EQUAL = (
  'rounds', 'clients_per_round', 'eval_every', 'finetune_epochs', 'patience',
  'checkpoint_every', 'resume', 'make_portrait', 'save_models', 'progress',
  'data_placement', 'wants_clients',
)  # fmt: skip


class RunRequest:
  """A run that is asked for, and what is kept of it once it is over."""

  def __init__(
    self,
    spec: Spec,
    programs: Programs,
    keep: Callable[[Outcome], Any],
  ):
    self.spec, self._programs = spec, programs
    self._keep, self.kept, self.is_over = keep, None, False
    self.own_callbacks = tuple(spec.callbacks)
    self.callbacks = Callbacks(self.own_callbacks)
    self.opened = contextlib.ExitStack()

  @property
  def local(self) -> LocalTraining:
    """How clients train."""
    return self.spec.algorithm.local

  def end(self, outcome: Outcome) -> None:
    """Keeps what is asked for of the outcome."""
    self.kept, self.is_over = self._keep(outcome), True

  def run_alone(self) -> None:
    """Runs it by itself."""
    outcome: Outcome
    try:
      outcome = run_one(self.spec, self._programs)
    except (Diverged, UserError) as e:
      outcome = e
    self.end(outcome)

  def why_alone(self, runs_at_once: int) -> str | None:
    """Why it is not run with others; '' where it is not to be said, or None."""
    algorithm, train = self.spec.algorithm, self.spec.train
    if runs_at_once == 1 or not isinstance(algorithm, Algorithm):
      return ''  # `run_one` says what is wrong.
    if processes.count() > 1:
      return 'several processes'
    if algorithm.between is not None:
      return 'the method decides on the host between rounds (`between`)'
    if self.spec.later_phases:
      return 'their data change over rounds'
    if algorithm.of_data is not None:
      return 'the method changes their data (`weighting`)'
    if not runs_at_once and side_by_side.most(algorithm.local, train.num_clients) < 2:
      return 'on a CPU, models with convolutions or of many parameters gain nothing'
    if self.spec.selection is not None:
      return 'their clients are selected on the host (`clients_per_round`)'
    if placement_of(self.spec) != 'replicated':
      return 'their data are split by client (`data_placement`)'
    return None

  @property
  def looks_at_states(self) -> bool:
    """True if something reads its state after every round."""
    reads = bool(self.own_callbacks) or bool(self.spec.patience)
    reads |= backdoor_of(self.spec.train) is not None  # Its success rate.
    reads |= self.spec.test.server_test is not None
    return looks_at_states(self.spec.algorithm, reads)

  @property
  def kind(self) -> Any:
    """Equal for runs whose data may be put together."""
    local, spec = self.local, self.spec
    numbers = [getattr(spec, name) for name in _EQUAL]
    splits = [spec.train, spec.test]
    of_data = [
      (s.x.dtype, s.y.dtype, s.y.shape[1:], s.example_shape, s.num_clients, s.scale,
       s.num_classes, s.task, s.attack and s.attack.kinds,
       s.groups and s.groups.count)
      for s in splits
    ]  # fmt: skip
    # A batch must not be larger beside runs with larger clients.
    width = batching.batch_width(local.schedule, splits[0].max_examples)
    of_local = local.mesh, local.schedule, local.clients_per_chunk, width
    return *numbers, *of_data, *of_local, spec.unseen is None

  def prepare(self, placed: Any) -> Prepared:
    """Does what is done before there is a state; see `prepare`."""
    timeline = Timeline(self.spec, placed)
    return prepare(self.spec, timeline, self._programs, self.opened)

  def check(self) -> bool:
    """True if it can be run; otherwise it is over."""
    try:
      check_run(self.spec)
    except UserError as e:
      self.end(e)
    return not self.is_over


def is_offloaded(state: Any) -> bool:
  """True if some of a state is in the host's memory."""
  leaves = jax.tree.leaves(state, is_leaf=offloading.is_offloaded)
  return any(map(offloading.is_offloaded, leaves))


def most_at_once(run: Prepared) -> int:
  """How many runs like this one are faster side by side, and fit into memory."""
  local, num_clients = run.algorithm.local, run.data.train.num_clients
  # The old and the new state, and the models of a chunk with what training makes of
  # them: weights, gradients, starts and updates.
  state = sum(map(bytes_on_device, jax.tree.leaves(run.shapes)))
  each = 3 * state + 24 * side_by_side.numbers(local, num_clients)
  held = sharding.memory(local.mesh.devices.flat[0], local.mesh.size) or 2**34
  return max(1, min(side_by_side.most(local, num_clients), held // 4 // each))
