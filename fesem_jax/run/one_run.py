"""One run, from what is asked for to its result."""

import contextlib
import dataclasses
import time

from fesem_jax.run.callbacks.calls import Callbacks
from fesem_jax.run.ending import finish, read_finished
from fesem_jax.run.loop import Alone, Running, run_rounds
from fesem_jax.run.preparation import placed, prepare, start
from fesem_jax.run.programs import CompileTime, Programs, shared
from fesem_jax.run.results.result import Result
from fesem_jax.run.spec import Spec
from fesem_jax.run.watching import begin
from fesem_jax.utils import processes, progress_lines


def run_one(spec: Spec, programs: Programs | None = None) -> Result:
  """Does what `simulate` does.

  `programs` are compiled by earlier runs of the same algorithm, e.g. with other seeds;
  None takes those of this process, so that a second run of an algorithm on data of the
  same shapes compiles nothing. For the exceptions, see `simulate`.
  """
  began = time.perf_counter()
  callbacks = Callbacks(spec.callbacks)
  programs = programs or shared()
  spec = _changed(spec)
  with contextlib.ExitStack() as opened:
    shown = spec.progress and processes.is_first()
    opened.enter_context(progress_lines.shown(shown))
    compiling = opened.enter_context(CompileTime())
    run = prepare(spec, placed(spec), programs, opened)
    run = start(run, opened)
    reason = begin(run, opened.enter_context(callbacks), spec.test)
    held = read_finished(run, reason, callbacks) if reason else None
    if held is not None:
      return held
    running = Running(run, callbacks, reason)
    run_rounds([running], Alone(run))
    return finish(running, compiling.seconds, began)


def _changed(spec: Spec) -> Spec:
  """A run whose training splits are as the method changes them."""
  # `check` refuses what is no Algorithm.
  of_data = getattr(spec.algorithm, 'of_data', None)
  if of_data is None:
    return spec
  others = spec.unseen[0].info.names if spec.unseen else ()
  first, *later = [p._replace(train=of_data(p.train, others)) for p in spec.phases]
  return dataclasses.replace(spec, train=first.train, later_phases=later)
