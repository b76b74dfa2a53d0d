"""The steps of a run after its last round: figures, summary, files."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.evaluation import label_skew
from fesem_jax.models.starting import whole_model
from fesem_jax.run import figure_data
from fesem_jax.run.callbacks.calls import Callbacks
from fesem_jax.run.callbacks.events import End
from fesem_jax.run.loop import Running
from fesem_jax.run.preparation import Prepared
from fesem_jax.run.results import (
  client_table,
  curves,
  records,
)
from fesem_jax.run.results.files import read_clients, read_result, write_result
from fesem_jax.run.results.result import Result
from fesem_jax.run.rule_subjects import check_after
from fesem_jax.run.watching import arranged, deploy
from fesem_jax.utils import free_memory

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


def finish(
  finished: Running,
  compile_seconds: Callable[[], float],
  began: float,
  runs_at_once: int = 1,
) -> Result:
  """The result of a run after its last round, written into its workdir.

  Callbacks are told of its end. `compile_seconds` counts what is compiled, and `began`
  is when the run began, by `time.perf_counter`. Raises the error of a run that
  diverged.
  """
  if finished.error is not None:
    raise finished.error
  run, callbacks = finished.run, finished.callbacks
  assert finished.measured is not None
  assert finished.reason is not None
  free_memory.give_back()  # That of the last evaluation.
  spec, data, state = run.spec, run.data, finished.state
  label_counts = label_skew.label_counts(data.on_host)
  written = spec.workdir is not None and spec.make_portrait
  picture = _portrait(run, state) if written else None
  timing = records.timing(
    compile_seconds(), finished.seconds, finished.steps, time.perf_counter() - began
  )
  if runs_at_once > 1:
    timing |= {'runs_at_once': runs_at_once}
  unseen = None
  if data.unseen is not None:
    unseen = run.evaluation.unseen(state, data.unseen)
  local = run.algorithm.local
  task = local.model.measured_as
  summary = records.summary(
    run.out.records,
    run.spec.config or {},
    spec.seed,
    label_counts,
    task.num_measured(finished.measured.deployed.sums)[: len(label_counts)],
    unseen,
    run.notes,
    timing,
    local,
  )
  summary |= {'data_placement': data.placement, 'ended': finished.reason}
  if spec.clients_per_round or spec.selection or local.dropout_rate:
    init_key = run.keys[prng_streams.INIT]
    summary |= run.evaluation.trained(finished.measured, state, init_key)
  summary['checks'] = [*run.found, *check_after(spec, summary, run.out.records)]
  clients = run.evaluation.clients(finished.measured, data.places)
  clients = callbacks.with_columns(clients)
  result = _result(run, state, summary, clients, picture)
  return _ended(run, result, finished.reason, callbacks)


def read_finished(run: Prepared, reason: str, callbacks: Callbacks) -> Result | None:
  """The result that the workdir of a finished run holds; None if it is not whole.

  No round of `run` is left; `reason` says why it ended. Callbacks are told of its end.
  """
  if run.spec.workdir is None:
    return None
  held = read_result(run.spec.workdir, run.out.records, run.spec.make_portrait)
  if held is None:
    return None
  clients = table = read_clients(run.spec.workdir)
  if table is None:
    measured = run.evaluation.measure(run.state, run.done)
    # Callbacks have columns of the last evaluation to add, which they are told anew.
    Running(run, callbacks, reason).nothing_left(measured, run.state)
    table = callbacks.with_columns(run.evaluation.clients(measured, run.data.places))
  result = _result(run, run.state, held[0], table, held[1])
  return _ended(run, result, reason, callbacks, held[0], clients is not None)


def _ended(
  run: Prepared,
  result: Result,
  reason: str,
  callbacks: Callbacks,
  held: records.Record | None = None,
  has_clients: bool = False,
) -> Result:
  """The result, with what callbacks add to it, and as files if there is a workdir."""
  callbacks.on_end(End(result=result, reason=reason))
  if run.spec.workdir is not None:
    picture = result.portrait if run.spec.make_portrait else {}
    save_models = run.spec.save_models
    write_result(run.spec.workdir, result, picture, save_models, held, has_clients)
  return result


def _portrait(run: Prepared, state: Any) -> dict[str, np.ndarray]:
  """Values that figures show of the clients; see `Result`."""
  key, data = run.keys[prng_streams.PORTRAIT], run.data
  picture = figure_data.draw(
    run.algorithm, state, data.train, key, run.programs, data.places
  )
  picture |= {'label_counts': label_skew.label_counts(data.on_host)}
  models = arranged(run).deployed(state)
  picture |= figure_data.confused(models, data.test, data.places)
  return picture | figure_data.sheets(picture, data.on_host)


def _evaluated(run: Prepared) -> list[records.Record]:
  """The records of the rounds that are measured where the run does not stop between.

  A run that has gone on was also measured where it ended before. Rounds with data that
  have changed since are left out.
  """
  every, (*earlier, last) = run.spec.eval_every, run.out.records
  since = _data_since(run)
  due = [r for r in earlier if every and r['round'] % every == 0]
  return [*(r for r in due if r['round'] >= since), last]


def _data_since(run: Prepared) -> int:
  """The first round that had the data of the last one."""
  last = run.out.records[-1]['round']
  return max(p.first_round for p in run.spec.phases if p.first_round <= last)


def _result(
  run: Prepared,
  state: Any,
  summary: records.Record,
  clients: 'DataFrame',
  picture: dict[str, np.ndarray] | None = None,
) -> Result:
  """The result; a `picture` is the portrait of its clients, if there is one."""
  model = run.algorithm.local.model
  task = model.measured_as
  return Result(
    clients,
    summary
    | {
      'reports': curves.reports(_evaluated(run), task),
      'fairness': client_table.fairness_of(clients, task.primary),
      f'global_{task.primary.name}': run.evaluation.of_one_model(run.out.records[-1]),
      **({curves.DATA_SINCE: _data_since(run)} if run.spec.later_phases else {}),
    },
    run.out.records,
    lambda: picture or _portrait(run, state),
    whole_model(model),
    state,
    run.data.train,
    run.data.places,
    deploy(run, state),
  )
