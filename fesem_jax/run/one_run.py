"""One run, from what is asked for to its result."""

import contextlib
import time

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.phases import Phase
from fesem_jax.run.callbacks.calls import Callbacks
from fesem_jax.run.ending import finish, read_finished
from fesem_jax.run.loop import Alone, Running, run_rounds
from fesem_jax.run.preparation import placed, prepare, start
from fesem_jax.run.programs import CompileTime, Programs, shared
from fesem_jax.run.results.result import Result
from fesem_jax.run.spec import Spec
from fesem_jax.run.watching import begin
from fesem_jax.utils import progress_lines


def run_one(spec: Spec, programs: Programs | None = None) -> Result:
  """Does what `simulate` does.

  `programs` are compiled by earlier runs of the same algorithm, e.g. with other seeds;
  None takes those of this process, so that a second run of an algorithm on data of the
  same shapes compiles nothing. For the exceptions, see `simulate`.
  """
  began = time.perf_counter()
  callbacks = Callbacks(spec.callbacks)
  settings = spec.settings(callbacks.wants_clients)
  programs = programs or shared()
  unseen, algorithm = spec.unseen, spec.algorithm
  phases = _changed(algorithm, spec.phases, unseen)
  with contextlib.ExitStack() as opened:
    opened.enter_context(progress_lines.shown(settings.progress))
    compiling = opened.enter_context(CompileTime())
    timeline = placed(algorithm, phases, unseen, settings, programs)
    run = prepare(
      algorithm, timeline, settings, spec.workdir, spec.config, programs, opened
    )
    run = start(run, opened)._replace(notes=[*spec.notes, *run.notes])
    reason = begin(run, opened.enter_context(callbacks), spec.test)
    held = read_finished(run, reason, callbacks) if reason else None
    if held is not None:
      return held
    running = Running(run, callbacks, reason)
    run_rounds([running], Alone(run))
    return finish(running, compiling.seconds, began)


def _changed(
  algorithm: Algorithm,
  phases: list[Phase],
  unseen: tuple[FederatedData, FederatedData] | None,
) -> list[Phase]:
  """Phases whose training splits are as the method changes them."""
  # `check` refuses what is no Algorithm.
  of_data = getattr(algorithm, 'of_data', None)
  if of_data is None:
    return phases
  others = unseen[0].info.names if unseen else ()
  return [p._replace(train=of_data(p.train, others)) for p in phases]
