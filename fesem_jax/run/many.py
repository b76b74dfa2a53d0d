"""Many runs as one program: seeds, data and hyperparameters are one more axis."""

import collections
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from fesem_jax.core.arrangement import arrange_together
from fesem_jax.run.ending import finish
from fesem_jax.run.loop import Running, run_rounds
from fesem_jax.run.over_runs import Functions, functions_of
from fesem_jax.run.preparation import Prepared, with_state
from fesem_jax.run.program_memory import TooLarge
from fesem_jax.run.programs import CompileTime, Programs, shared
from fesem_jax.run.run_request import Outcome, RunRequest, is_offloaded, most_at_once
from fesem_jax.run.spec import Spec
from fesem_jax.run.together import Together
from fesem_jax.run.watching import begin
from fesem_jax.utils import free_memory, progress_lines
from fesem_jax.utils.errors import Diverged, UserError
from fesem_jax.utils.interrupts import Stopped
from fesem_jax.utils.ranges import Index, checked


@checked
def run_many(
  specs: Sequence[Spec],
  *,
  runs_at_once: Index = 0,
  programs: Programs | None = None,
  keep: Callable[[int, Outcome], Any] = lambda place, outcome: outcome,
) -> list[Any]:
  """Does what `simulate_many` does; for `programs`, see `run_one`."""
  programs = programs or shared()
  runs = [
    RunRequest(spec, programs, functools.partial(keep, place))
    for place, spec in enumerate(specs)
  ]
  together, alone = dict[Any, list[RunRequest]](), dict[str, int]()
  users = collections.Counter(id(own) for each in runs for own in each.own_callbacks)
  for each in runs:
    reason = each.why_alone(runs_at_once)
    if reason is None and any(users[id(own)] > 1 for own in each.own_callbacks):
      reason = 'they have `callbacks` in common, which can follow one run at a time'
    if reason is None:
      together.setdefault(each.kind, []).append(each)
    elif reason:
      alone[reason] = alone.get(reason, 0) + 1
  for reason, count in alone.items():
    if count > 1 and any(spec.progress for spec in specs):
      logging.warning('Note: %d runs one after the other: %s.', count, reason)
  for group in together.values():
    if len(group) > 1:
      _run_group(group, runs_at_once)
  for each in runs:
    if not each.is_over:
      each.run_alone()
  return [each.kept for each in runs]


def _run_group(group: Sequence[RunRequest], runs_at_once: int) -> None:
  """Runs what can be run side by side of runs of one kind; others have no outcome."""
  with contextlib.ExitStack() as opened:
    compiling = opened.enter_context(CompileTime())
    opened.enter_context(progress_lines.shown(group[0].spec.progress))
    free_memory.give_back()
    group = [each for each in group if each.check()]
    with progress_lines.waiting_for('placing the data'):
      pairs = [(each.spec.train, each.spec.test) for each in group]
      placed = arrange_together(group[0].local, pairs) if group else []
    alike = dict[Any, list[Part]]()
    for each, own in zip(group, placed, strict=True):
      opened.push(each.opened)
      try:
        run = each.prepare(own)
        if _is_new(run) and not is_offloaded(run.shapes):
          functions = functions_of(run)
          alike.setdefault(functions.digests, []).append((each, run, functions))
          continue
      except UserError as e:
        each.end(e)
      each.opened.close()
    for parts in alike.values():
      most = runs_at_once or most_at_once(parts[0][1])
      number = -(-len(parts) // most)
      for i in range(number):
        _side_by_side(parts[i::number], compiling)


# A run that is asked for, as prepared, and its functions.
Part = tuple[RunRequest, Prepared, Functions]


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
  except NotImplementedError as e:  # An operation that JAX cannot map.
    logging.warning('Note: %d runs one after the other: %s', count, e)
    for each, *_ in parts:
      each.opened.close()
    return
  running = list[tuple[RunRequest, Running]]()
  for place, (each, run, _) in enumerate(parts):
    state = together.state(place) if reads else None
    try:
      run = with_state(run, each.opened, state, 0, init_seconds / count)
      each.opened.enter_context(each.callbacks)
      reason = begin(run, each.callbacks, each.spec.test, shows=not place)
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
  """True if no round of a run was saved."""
  return run.checkpoints is None or run.checkpoints.latest_round() is None
