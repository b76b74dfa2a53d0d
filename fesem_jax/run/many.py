"""Many runs as one program: seeds, data and hyperparameters are one more axis."""

import contextlib
import dataclasses
import functools
import inspect
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from fesem_jax.callbacks.calls import Callbacks
from fesem_jax.core import offloading, sharding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data.phases import Phase
from fesem_jax.results.result import Result
from fesem_jax.run.ending import finish
from fesem_jax.run.loop import Running, run_rounds
from fesem_jax.run.preparation import Prepared, check, prepare, with_state
from fesem_jax.run.program_memory import TooLarge, bytes_on_device
from fesem_jax.run.programs import CompileTime, Programs, shared
from fesem_jax.run.settings import Settings
from fesem_jax.run.simulation import simulate
from fesem_jax.run.timeline import Timeline, placement_of
from fesem_jax.run.together import (
  Functions,
  Together,
  arrange_together,
  functions_of,
  looks_at_states,
)
from fesem_jax.run.watching import begin
from fesem_jax.utils import free_memory, processes, progress_lines
from fesem_jax.utils.errors import Diverged, UserError, check_at_least
from fesem_jax.utils.interrupts import Stopped

# What a run came to: its result, or the exception that `simulate` would have raised.
Outcome = Result | Diverged | UserError

# Numbers of models that train side by side on a CPU: more of them leave its cache, and
# the arithmetic takes the time that calls took before.
_MOST_NUMBERS = 2**22


def simulate_many(
  runs: Iterable[Mapping[str, Any]],
  *,
  runs_at_once: int = 0,
  programs: Programs | None = None,
  keep: Callable[[int, Outcome], Any] = lambda place, outcome: outcome,
  **options: Any,
) -> list[Any]:
  """Runs an algorithm many times, several runs as one program.

  Runs that differ in their seeds, in the values of their data and in hyperparameters
  (`variable`) train side by side; other differences make programs of their own. Each
  run gives what `simulate` gives, also its workdir and its callbacks, equal within
  rounding; with `runs_at_once=1`, equal to the bit. Run one after the other are methods
  that decide on the host (`Algorithm.between`), models with convolutions on a CPU, data
  that are split by client or change over rounds, states in the host's memory, and
  several processes.

  A workdir that holds a run already is continued as `simulate` does. Ctrl-C saves the
  runs after a round; a process that dies loses those that are not finished.

  Args:
    runs: the arguments of each run, as of `simulate`: `algorithm`, `train`, `test`,
      `seed`, `workdir` and others. Runs of the same splits should share the objects.
    runs_at_once: the most runs of one program; 0 takes as many as are faster and fit
      into a quarter of the memory.
    programs: see `simulate`.
    keep: (place in `runs`, outcome) -> what is returned of a run, called as soon as it
      is over, so that what is not needed of it leaves the memory.
    **options: arguments of `simulate` that all runs have in common, e.g. `rounds`.

  Returns:
    In the order of `runs`, the outcome of each: its `Result`, or the `Diverged` or
    `UserError` that `simulate` raises for it.

  Raises:
    Stopped: as `simulate`.
    UserError: if `runs_at_once` is negative.
  """
  check_at_least(0, runs_at_once=runs_at_once)
  programs = programs or shared()
  asked = [
    _Asked(options | dict(run), programs, functools.partial(keep, place))
    for place, run in enumerate(runs)
  ]
  together, alone = dict[Any, list[_Asked]](), dict[str, int]()
  for each in asked:
    reason = each.why_alone() if runs_at_once != 1 else ''
    if reason is None:
      together.setdefault(each.kind, []).append(each)
    elif reason:
      alone[reason] = alone.get(reason, 0) + 1
  for reason, count in alone.items():
    if count > 1 and options.get('progress') is not False:
      logging.warning('Note: %d runs one after the other: %s.', count, reason)
  for group in together.values():
    if len(group) > 1:
      _run_group(group, runs_at_once)
  for each in asked:
    if not each.is_over:
      each.run_alone()
  return [each.kept for each in asked]


class _Asked:
  """A run that is asked for, and what is kept of it once it is over."""

  def __init__(
    self,
    arguments: Mapping[str, Any],
    programs: Programs,
    keep: Callable[[Outcome], Any],
  ):
    bound = inspect.signature(simulate).bind(**arguments, programs=programs)
    bound.apply_defaults()
    self.arguments = a = bound.arguments
    self._keep, self.kept, self.is_over = keep, None, False
    self.callbacks = Callbacks(a['callbacks'])
    names = [field.name for field in dataclasses.fields(Settings)]
    given = {name: a[name] for name in names if name in a}
    self.settings = Settings(**given, tell_clients=self.callbacks.wants_clients)
    self.folder = None if a['workdir'] is None else pathlib.Path(a['workdir'])
    self.phases = [Phase(1, a['train'], a['test']), *a['later_phases']]
    self.opened = contextlib.ExitStack()

  @property
  def local(self) -> LocalTraining:
    return self.arguments['algorithm'].local

  def end(self, outcome: Outcome) -> None:
    """Keeps what is asked for of the outcome."""
    self.kept, self.is_over = self._keep(outcome), True

  def run_alone(self) -> None:
    """Runs it by `simulate`."""
    outcome: Outcome
    try:
      outcome = simulate(**self.arguments)
    except (Diverged, UserError) as e:
      outcome = e
    self.end(outcome)

  def why_alone(self) -> str | None:
    """Why it cannot be run with others; '' where it is not to be said, or None."""
    algorithm, train = self.arguments['algorithm'], self.arguments['train']
    if not isinstance(algorithm, Algorithm):
      return ''  # `simulate` says so.
    if processes.count() > 1:
      return 'several processes'
    if algorithm.between is not None:
      return 'the method decides on the host between rounds (`between`)'
    if self.phases[1:]:
      return 'their data change over rounds'
    if _convolves_on_cpu(algorithm.local):
      return 'convolutions of several models are slow side by side on a CPU'
    s = self.settings
    pair = train, self.arguments['test']
    placed = placement_of(algorithm.local, *pair, s.data_placement, s.clients_per_round)
    if placed != 'replicated':
      return 'their data are split by client (`data_placement`)'
    return None

  @property
  def looks_at_states(self) -> bool:
    """Whether something reads its state after every round."""
    a = self.arguments
    asked = bool(a['callbacks']) or bool(self.settings.patience)
    return looks_at_states(a['algorithm'], asked)

  @property
  def kind(self) -> Any:
    """Equal for runs whose data may be put together."""
    local, settings = self.local, dataclasses.replace(self.settings, seed=0)
    splits = [self.arguments['train'], self.arguments['test']]
    of_data = [
      (s.x.dtype, s.y.dtype, s.y.shape[1:], s.example_shape, s.num_clients, s.scale,
       s.num_classes, s.task, s.corruption and s.corruption.kind,
       s.groups and s.groups.count)
      for s in splits
    ]  # fmt: skip
    of_local = local.mesh, local.schedule, local.clients_per_chunk
    return settings, tuple(of_data), of_local, self.arguments['unseen'] is None

  def prepare(self, placed: Any) -> Prepared:
    """Does what is done before there is a state; see `prepare`."""
    a, s = self.arguments, self.settings
    timeline = Timeline(
      self.local, self.phases, a['unseen'], s.data_placement, s.clients_per_round,
      placed,
    )  # fmt: skip
    run = prepare(
      a['algorithm'], timeline, s, self.folder, a['config'], a['programs'], self.opened
    )
    return run._replace(notes=[*a['notes'], *run.notes])

  def check(self) -> bool:
    """Whether it can be run; otherwise it is over."""
    a = self.arguments
    try:
      check(a['algorithm'], self.phases, a['unseen'], self.settings, a['programs'])
    except UserError as e:
      self.end(e)
    return not self.is_over


def _run_group(group: Sequence[_Asked], runs_at_once: int) -> None:
  """Runs what can be run side by side of runs of one kind; others have no outcome."""
  with contextlib.ExitStack() as opened:
    compiling = opened.enter_context(CompileTime())
    opened.enter_context(progress_lines.shown(group[0].settings.progress))
    free_memory.give_back()
    group = [each for each in group if each.check()]
    with progress_lines.waiting_for('placing the data'):
      pairs = [(each.arguments['train'], each.arguments['test']) for each in group]
      placed = arrange_together(group[0].local, pairs) if group else []
    alike = dict[Any, list[Part]]()
    for each, own in zip(group, placed, strict=True):
      opened.callback(each.opened.close)
      try:
        run = each.prepare(own)
      except UserError as e:
        each.end(e)
      else:
        if _is_new(run) and not _is_offloaded(run.shapes):
          functions = functions_of(run)
          alike.setdefault(functions.digests, []).append((each, run, functions))
          continue
      each.opened.close()
    for parts in alike.values():
      most = runs_at_once or most_at_once(parts[0][1])
      number = -(-len(parts) // most)
      for i in range(number):
        _side_by_side(parts[i::number], compiling)


# A run that is asked for, as prepared, and its functions.
Part = tuple[_Asked, Prepared, Functions]


def _side_by_side(parts: Sequence[Part], compiling: CompileTime) -> None:
  """Runs alike runs as one program; a single one has no outcome."""
  if len(parts) == 1:
    parts[0][0].opened.close()
    return
  began, compiled, count = time.perf_counter(), compiling.seconds(), len(parts)
  reads = any(each.looks_at_states for each, *_ in parts)
  try:
    together = Together([p[1] for p in parts], [p[2] for p in parts], reads)
    init_seconds = together.begin()
  except TooLarge:
    for half in (parts[: count // 2], parts[count // 2 :]):
      _side_by_side(half, compiling)
    return
  running = list[tuple[_Asked, Running]]()
  for place, (each, run, _) in enumerate(parts):
    state = together.state(place) if reads else None
    try:
      run = with_state(run, each.opened, state, 0, init_seconds / count)
      each.opened.enter_context(each.callbacks)
      reason = begin(run, each.callbacks, each.arguments['test'], shows=not place)
    except UserError as e:
      each.end(e)
      continue
    running.append((each, Running(run, each.callbacks, reason, place)))
  stopped = None
  try:
    run_rounds([run for _, run in running], together)
  except Stopped as e:
    stopped = e
  except UserError as e:
    for each, _ in running:
      each.end(e)
    return
  # Each run takes its share of the time.
  share = (time.perf_counter() - began) / count
  compiled = (compiling.seconds() - compiled) / count
  for each, over in running:
    if over.reason is None and over.error is None:
      continue
    before, own = compiling.seconds(), time.perf_counter()
    try:
      with each.opened:
        outcome: Outcome = finish(
          over,
          functools.partial(_compiled_since, compiling, before - compiled),
          own - share,
          count,
        )
    except (Diverged, UserError) as e:
      outcome = e
    each.end(outcome)
  if stopped is not None:
    raise stopped


def _compiled_since(compiling: CompileTime, before: float) -> float:
  return compiling.seconds() - before


def _is_new(run: Prepared) -> bool:
  """Whether no round of a run was saved."""
  return run.checkpoints is None or run.checkpoints.latest_round() is None


def _is_offloaded(state: Any) -> bool:
  """Whether some of a state is in the host's memory."""
  leaves = jax.tree.leaves(state, is_leaf=offloading.is_offloaded)
  return any(map(offloading.is_offloaded, leaves))


def _convolves_on_cpu(local: LocalTraining) -> bool:
  """Whether clients train one after the other on each CPU device."""
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  on_cpu = local.mesh.devices.flat[0].platform == 'cpu'
  return on_cpu and any(x.ndim > 2 for x in jax.tree.leaves(params))


def most_at_once(run: Prepared) -> int:
  """How many runs like this one are faster side by side, and fit into memory."""
  local = run.algorithm.local
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  numbers = local.clients_per_chunk * sum(x.size for x in jax.tree.leaves(params))
  device, devices = local.mesh.devices.flat[0], local.mesh.size
  # The old and the new state, and the models of a chunk with what training makes of
  # them: weights, gradients, starts and updates.
  state = sum(map(bytes_on_device, jax.tree.leaves(run.shapes)))
  each = 3 * state + 24 * numbers
  most = (sharding.memory(device, devices) or 2**34) // 4 // each
  if device.platform == 'cpu':
    most = min(most, _MOST_NUMBERS // numbers)
  return max(1, most)
