"""The steps of a run after its last round: figures, summary, files."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fesem_jax.core import offloading, placement, prng_streams, sharding
from fesem_jax.data import label_counts
from fesem_jax.evaluation import curves
from fesem_jax.models.starting import whole_model
from fesem_jax.run import evaluation, figure_data, programs
from fesem_jax.run.callbacks.callback import call
from fesem_jax.run.checks import check_after
from fesem_jax.run.replicate import Replicate
from fesem_jax.run.results import client_table, records
from fesem_jax.run.results.files import read_result, write_result
from fesem_jax.run.results.result import Result
from fesem_jax.utils import free_memory

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


def finish(run: Replicate, began: np.ndarray, measure: Any, start: Any) -> Result:
  """The result of a run after its last round, written into its workdir.

  `began` is `programs.clock` at the beginning, `measure` measures the last state, and
  `start` gives the first one again. Raises the error of a run that diverged.
  """
  if run.error is not None:
    raise run.error
  if run.measured is None:  # No round was left.
    if (result := _read(run)) is not None:
      return result
    run.measure_again(measure(), run.state)
  assert run.measured is not None
  free_memory.give_back()  # That of the last evaluation.
  spec, state, train = run.spec, run.state, run.splits[0]
  counts = label_counts(run.on_host)
  picture = _portrait(run) if spec.workdir is not None and spec.make_portrait else None
  total, compiled = (programs.clock() - began).tolist()
  timing = records.timing(compiled, total, run.seconds, run.steps)
  if run.runner.count > 1:
    timing |= {'runs_at_once': run.runner.count}
  local, used, task, others = run.algorithm.local, run.runner.deployed, run.task, None
  if spec.unseen is not None and used.personal is None:
    others = evaluation.unseen(run.algorithm, state, train, spec.unseen)
  summary = records.summary(
    run.out.records,
    spec.config or {},
    counts,
    task.num_measured(run.measured.deployed.sums)[: len(counts)],
    local,
    seed=spec.seed,
    unseen=others,
    notes=run.notes,
    timing=timing,
  )
  summary |= {'data_placement': placement.of(train), 'ended': run.reason}
  is_sampled = spec.clients_per_round or spec.selection or local.dropout_rate
  personal = used.personal
  if is_sampled and personal is not None and not offloading.is_offloaded(personal):
    summary |= evaluation.trained(run.measured, state, start(), train, task)
  clients = client_table.make(run.measured, train, run.places, task)
  summary['checks'] = [*run.found, *check_after(spec, summary, run.out.records)]
  return _ended(run, _result(run, summary, clients, picture))


def _read(run: Replicate) -> Result | None:
  """The result that the workdir of a finished run holds; None if it is not whole."""
  folder, history = run.spec.workdir, run.out.records
  files_of_run = folder and read_result(folder, history, run.spec.make_portrait)
  if not files_of_run:
    return None
  summary, clients, picture = files_of_run
  return _ended(run, _result(run, summary, clients, picture), summary)


def _ended(
  run: Replicate, result: Result, before: records.Record | None = None
) -> Result:
  """The result with additions of callbacks, also as files, where not read `before`."""
  history, reason = result.history, run.reason or ''
  now = {'record': history[-1], 'records': tuple(history[:-1]), 'state': None}
  event = run.event(result=result, reason=reason, **now)
  call(run.callbacks, 'on_end', event, result.summary)
  if event.columns:
    clients = client_table.with_columns(result.clients, event.columns, 'columns')
    result = dataclasses.replace(result, clients=clients)
  if run.spec.workdir is not None:
    picture = result.portrait if run.spec.make_portrait else {}
    write_result(run.spec.workdir, result, picture, run.spec.save_models, before)
  return result


def _portrait(run: Replicate) -> dict[str, np.ndarray]:
  """Values that figures show of the clients; see `Result`."""
  (train, test), places = run.splits, run.places
  key = prng_streams.folded(jax.random.key(run.spec.seed), prng_streams.PORTRAIT)
  key = sharding.replicate(key, run.algorithm.local.mesh)
  picture = figure_data.draw(run.algorithm, run.state, train, key, places)
  picture |= {'label_counts': label_counts(run.on_host)}
  picture |= figure_data.confused(run.deployed(run.state), test, places)
  return picture | figure_data.sheets(picture, run.on_host)


def _evaluated(run: Replicate) -> list[records.Record]:
  """The records of due evaluations on the last data, and the last record."""
  every, (*earlier, last) = run.spec.eval_every, run.out.records
  since = _data_since(run)
  due = [r for r in earlier if every and r['round'] and r['round'] % every == 0]
  return [*(r for r in due if r['round'] >= since), last]


def _data_since(run: Replicate) -> int:
  """The first round that had the data of the last one."""
  last = run.out.records[-1]['round']
  return max(p.first_round for p in run.spec.phases if p.first_round <= last)


def _result(
  run: Replicate,
  summary: records.Record,
  clients: 'DataFrame',
  picture: dict[str, np.ndarray] | None,
) -> Result:
  model, history = run.algorithm.local.model, run.out.records
  task, deployed = model.measured_as, run.runner.deployed
  one = evaluation.of_one_model(deployed, history[-1], task)
  return Result(
    clients,
    summary
    | {
      'reports': curves.reports(_evaluated(run), task),
      'fairness': client_table.fairness_of(clients, task.primary),
      f'global_{task.primary.name}': one,
      **({'data_since': _data_since(run)} if run.spec.later_phases else {}),
    },
    history,
    lambda: picture or _portrait(run),
    whole_model(model),
    run.state,
    run.splits[0],
    run.places,
    lambda: run.deploy(run.state),
  )
