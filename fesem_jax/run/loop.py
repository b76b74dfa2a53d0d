"""The rounds of runs of one program, and the programs that many runs need."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.core import batching, placement
from fesem_jax.core.arrangement import arrange, arrange_together
from fesem_jax.data.attacks import backdoor_of
from fesem_jax.run import figure_data, programs
from fesem_jax.run.checks import check_run
from fesem_jax.run.ending import finish
from fesem_jax.run.evaluation import Measured
from fesem_jax.run.program_memory import TooLarge
from fesem_jax.run.replicate import Replicate
from fesem_jax.run.results.result import Result
from fesem_jax.run.runner import Runner, Splits, axes_of, method_of
from fesem_jax.run.selecting import draw
from fesem_jax.run.spec import Spec
from fesem_jax.utils import free_memory, processes, progress_lines
from fesem_jax.utils.errors import Diverged, UserError
from fesem_jax.utils.interrupts import Stopped, interruptible

# At most so many rounds in one call: what they report is kept on the devices.
_MOST_ROUNDS = 64

# What a run came to: its result, or the exception that `simulate` raises.
Outcome = Result | Diverged | UserError


def run_rounds(
  runner: Runner, runs: Sequence[Replicate], states: Any, inputs: Any
) -> None:
  """Runs all rounds that are left of runs that are equally far.

  A run that diverges gets its `error`. Raises `Stopped` if they are interrupted.
  """
  spec, done = runs[0].spec, runs[0].done
  with interruptible() as interrupted:
    while active := [r for r in runs if r.reason is None and r.error is None]:
      began = time.perf_counter()
      if any(run.enter(done + 1) for run in active):
        inputs = _inputs(runner, runs)
      every = [spec.eval_every, spec.checkpoint_every if spec.workdir else 0]
      due = [spec.rounds - done, *(n - done % n for n in every if n)]
      ahead = min(*due, runner.most)
      drawn = [
        [run.select(done + 1 + i, states) for run in _padded(runner, runs)]
        for i in range(ahead)
      ]
      cohorts = [[cohort for cohort, _ in draws] for draws in drawn]
      states, *reports = runner.train(states, inputs, cohorts, done + 1)
      reports = processes.on_host(reports)
      # Each run takes its share of the time.
      seconds = (time.perf_counter() - began) / ahead / len(runs)
      stopped = None
      for i in range(ahead):
        halts = i == ahead - 1 and interrupted()
        measure = _measured(runner, states, inputs, done + i + 1)
        for run in [r for r in active if r.reason is None and r.error is None]:
          place = runs.index(run)
          info, clusters = reports
          if runner.count > 1:
            info, clusters = jax.tree.map(lambda x: x[i, place], reports)  # noqa: B023
          cohort, entries = drawn[i][place]
          try:
            stopped = run.after_round(
              cohort, info, clusters, seconds,
              functools.partial(measure, place),
              functools.partial(runner.state, states, place),
              interrupted=halts, **entries,
            ) or stopped  # fmt: skip
          except Diverged as e:
            run.error = e
      done += ahead
      if stopped is not None:
        raise stopped


def _measured(
  runner: Runner, states: Any, inputs: Any, number: int
) -> Callable[[int], Measured]:
  """Measures all runs at once after a round: place of a run -> its measurements."""

  @functools.cache
  def measure() -> Any:
    with progress_lines.waiting_for('evaluating'):
      leaves, form = jax.tree.flatten(runner.evaluate(states, inputs, number))
      # In turn, or those of many clients would be there twice.
      moved = [processes.on_host(leaves.pop(0)) for _ in range(len(leaves))]
    return jax.tree.unflatten(form, moved)

  def at(place: int) -> Measured:
    (deployed, finetuned, failed), chosen = _at(runner, measure(), place)
    count = runner.deployed.num_clusters()
    return Measured(deployed, finetuned, failed, chosen, count)

  return at


def _at(runner: Runner, tree: Any, place: int) -> Any:
  return tree if runner.count == 1 else jax.tree.map(lambda x: x[place], tree)


def _padded(runner: Runner, runs: Sequence[Replicate]) -> list[Replicate]:
  """As many runs as a program has, some of them more than once."""
  return [*runs, *[runs[0]] * (runner.count - len(runs))]


def _inputs(runner: Runner, runs: Sequence[Replicate]) -> Any:
  padded = _padded(runner, runs)
  seeds, values = ([getattr(r.spec, x) for r in padded] for x in ('seed', 'values'))
  return runner.inputs(seeds, values, [run.splits for run in padded])


def run_together(
  specs: Sequence[Spec],
  splits: Sequence[Splits],
  count: int,
  axes: Sequence[int | None],
  end: Callable[[Spec, Outcome], None],
) -> None:
  """Carries out up to R = `count` runs of one method, by one program.

  `splits` are as arranged, and `end` gets the outcome of each run once it is over.
  Raises `UserError` of a method that cannot run, or a program that is too large.
  """
  clock, runs = programs.clock(), list[Replicate]()
  with contextlib.ExitStack() as opened:
    runner = runner_of(specs[0], splits[0], count, axes)
    for spec, pair in zip(specs, splits, strict=True):
      stack = opened.enter_context(contextlib.ExitStack())
      try:
        runs.append(Replicate(spec, runner, pair, stack, shows=not runs))
      except UserError as e:
        stack.close()
        end(spec, e)
    for done in sorted({run.done for run in runs}):
      _run_members(runner, [run for run in runs if run.done == done], end, clock)
      clock = programs.clock()


def _run_members(
  runner: Runner,
  runs: list[Replicate],
  end: Callable[[Spec, Outcome], None],
  clock: np.ndarray,
) -> None:
  """Carries out runs of which equally many rounds are done, which began at `clock`."""
  done = runs[0].done
  if done < runs[0].spec.rounds:
    _ = runner.programs
    for run in runs if runner.deployed.has_clusters() else ():
      if run.spec.workdir is not None and run.spec.make_portrait:
        args = run.algorithm, runner.shape, run.splits[0], run.spec.seed
        figure_data.local_models(*args)
    runner.wait()
  inputs, started = _inputs(runner, runs), time.perf_counter()
  if done:
    saved = [
      run.checkpoints.load(done, runner.shape) for run in runs if run.checkpoints
    ]
    states = runner.states([*saved, *saved[:1] * (runner.count - len(saved))])
    clusters = processes.on_host(runner.clusters(states, inputs))
  else:
    with progress_lines.waiting_for('first models'):
      states, clusters = jax.block_until_ready(runner.start(inputs))
    clusters = processes.on_host(clusters)
  seconds = (time.perf_counter() - started) / len(runs)
  measure_start = _measured(runner, states, inputs, done)
  for place, run in enumerate(runs):
    run.state = runner.state(states, place) if runner.most == 1 or done else None
    measured = functools.partial(measure_start, place)
    run.begin(run.state, _at(runner, clusters, place), seconds, measured)
  stopped = None
  try:
    run_rounds(runner, runs, states, inputs)
  except Stopped as e:
    stopped = e
  share = (programs.clock() - clock) / len(runs)
  free_memory.give_back()  # That of the last evaluation.
  for place, run in enumerate(runs):
    if run.reason is None and run.error is None:
      continue
    measure = functools.partial(_measured(runner, states, inputs, run.done), place)
    try:
      with run.opened:
        outcome: Outcome = finish(run, programs.clock() - share, measure)
    except (Diverged, UserError) as e:
      outcome = e
    end(run.spec, outcome)
  if stopped is not None:
    raise stopped


def runner_of(
  spec: Spec, splits: Splits, count: int, axes: Sequence[int | None]
) -> Runner:
  """The programs of runs like one, of which `splits` are arranged."""
  method, cohort = method_of(spec), draw(spec, splits[0], 1)
  most = 1 if count == 1 or reads_states(spec) else min(spec.rounds, _MOST_ROUNDS)
  options = count, most, tuple(axes), spec.wants_clients, spec.finetune_epochs
  with programs.waiting('checking the method on the data'):
    return programs.once(
      ('runner', method[1], *options),
      lambda: Runner(spec, method, splits, cohort, axes, count, most),
      *splits,
      cohort,
    )


def reads_states(spec: Spec) -> bool:
  """True if something reads the state of a run after every round."""
  traffic = spec.algorithm.traffic
  return (
    bool(spec.callbacks)
    or bool(spec.patience)
    or backdoor_of(spec.train) is not None
    or spec.test.server_test is not None
    or (traffic is not None and traffic.inputs is not None)
  )


def run_many(
  specs: Sequence[Spec],
  runs_at_once: int = 0,
  keep: Callable[[int, Outcome], Any] = lambda place, outcome: outcome,
  like: Sequence[Splits] = (),
) -> list[Any]:
  """The outcome of each run, or what `keep` makes of it; see `simulate_many`."""
  outcomes, callbacks = dict[int, Any](), [c for spec in specs for c in spec.callbacks]

  def end(spec: Spec, outcome: Outcome) -> None:
    if id(spec) not in outcomes:
      place = next(i for i, x in enumerate(specs) if x is spec)
      outcomes[id(spec)] = keep(place, outcome)

  free_memory.give_back()  # That of the caller, and of earlier runs.
  groups = dict[Any, list[Spec]]()
  specs = list(map(_with_data_of_method, specs))
  for spec in specs:
    try:
      check_run(spec)
    except UserError as e:
      end(spec, e)
      continue
    at_most = most_at_once(spec, 0 if like else runs_at_once)
    at_most = min(at_most, runs_at_once or at_most)
    if any(callbacks.count(own) > 1 for own in spec.callbacks):
      at_most = 1
    kind = at_most, _kind(spec) if at_most > 1 else id(spec)
    groups.setdefault(kind, []).append(spec)
  for (at_most, _), group in groups.items():
    shows = group[0].progress and processes.is_first()
    with progress_lines.shown(shows):
      _run_group(group, at_most, like, end)
  return [outcomes.get(id(spec)) for spec in specs]


def begin_to_compile(specs: Sequence[Spec], most: int, like: Sequence[Splits]) -> None:
  """Begins to compile what `run_many` needs for runs, up to `most` at once."""
  last = specs[-1]
  if (count := min(most, most_at_once(last))) > 1:
    pairs = [(spec.train, spec.test) for spec in specs]
    *_, splits = arranged = arrange_together(last.algorithm.local, pairs, like)
    _ = runner_of(last, splits, count, axes_of(arranged)).programs


def _with_data_of_method(spec: Spec) -> Spec:
  """A run whose training splits are as the method changes them."""
  change = getattr(spec.algorithm, 'prepare_data', None)
  if change is None:
    return spec
  first, *later = [p._replace(train=change(p.train)) for p in spec.phases]
  return dataclasses.replace(spec, train=first.train, later_phases=later)


def _run_group(
  group: list[Spec],
  most: int,
  like: Sequence[Splits],
  end: Callable[[Spec, Outcome], None],
) -> None:
  """Carries out runs of one kind, R <= `most` at once."""
  local = group[0].algorithm.local
  if most == 1 or (len(group) == 1 and not like):
    for spec in group:
      with progress_lines.waiting_for('placing the data'):
        where = placement_of(spec)
        train, test = arrange(local, spec.train, spec.test, data_placement=where)
      _run_part([spec], [(train, test)], 1, (), end)
    return
  pairs = [(spec.train, spec.test) for spec in group]
  with progress_lines.waiting_for('placing the data'):
    arranged = arrange_together(local, pairs, like)
  axes = axes_of(arranged)
  splits = {id(s): p for s, p in zip(group, arranged, strict=True)}
  while group:
    count = most if like else min(most, len(group))
    try:
      runner = runner_of(group[0], splits[id(group[0])], count, axes)
      if not runner.is_offloaded:
        runner.trace()  # Says which numbers are arguments.
    except UserError as e:
      end(group[0], e)
      group = group[1:]
      continue
    alike = [s for s in group if method_of(s)[1] is runner.arguments]
    group = [s for s in group if s not in alike]
    if runner.is_offloaded or (len(alike) == 1 and not like):
      _run_group(alike, 1, (), end)
      continue
    parts = -(-len(alike) // count)
    count = count if like else -(-len(alike) // parts)
    for i in range(0, len(alike), count):
      part = alike[i : i + count]
      _run_part(part, [splits[id(s)] for s in part], count, axes, end)


def _run_part(
  specs: Sequence[Spec],
  splits: Sequence[Splits],
  count: int,
  axes: Sequence[int | None],
  end: Callable[[Spec, Outcome], None],
) -> None:
  """`run_together`, of fewer runs at once if the program does not fit."""
  try:
    run_together(specs, splits, count, axes, end)
  except (UserError, NotImplementedError) as e:
    if count > 1 and isinstance(e, (TooLarge, NotImplementedError)):
      # JAX cannot map some operations.
      fewer = count // 2 if isinstance(e, TooLarge) else 1
      for i in range(0, len(specs), fewer):
        part = slice(i, i + fewer)
        _run_part(specs[part], splits[part], fewer, axes if fewer > 1 else (), end)
    elif isinstance(e, UserError):
      for spec in specs:
        end(spec, e)
    else:
      raise


def most_at_once(spec: Spec, asked: int = 0) -> int:
  """R, the most runs of one program that are faster than one after the other."""
  algorithm, local = spec.algorithm, spec.algorithm.local
  alone = (
    processes.count() > 1
    or algorithm.between is not None
    or algorithm.prepare_data is not None
    or spec.later_phases
    or spec.selection is not None
    or placement_of(spec) != 'replicated'
  )
  return 1 if alone else asked or local.max_concurrent(spec.train.num_clients)


def placement_of(spec: Spec) -> str:
  """'replicated' or 'sharded': where the data of a run are."""
  return placement.chosen(
    spec.algorithm.local.data_placement,
    placement.bytes_of(spec.train, spec.test),
    spec.algorithm.local.mesh,
    everyone=not 0 < spec.clients_per_round < spec.train.num_clients,
  )


# Of a `Spec`: what runs must have in common to be put together.
_EQUAL = (
  'rounds', 'clients_per_round', 'eval_every', 'eval_start', 'finetune_epochs',
  'patience', 'checkpoint_every', 'wants_clients',
)  # fmt: skip


def _kind(spec: Spec) -> Any:
  """Equal for runs whose data may be put together."""
  local, options = spec.algorithm.local, [getattr(spec, name) for name in _EQUAL]
  # A batch must not be larger beside runs with larger clients.
  width = batching.batch_width(local.schedule, spec.train.max_examples)
  forms = list[Any]()
  for split in (spec.train, spec.test):
    leaves, form = jax.tree.flatten(dataclasses.replace(split, max_examples=0))
    forms += [form, *((x.dtype, x.shape[1:]) for x in leaves)]
  local_options = local.mesh, local.schedule, local.clients_per_chunk, width
  return spec.method or spec.make or spec.algorithm, *options, *forms, *local_options
