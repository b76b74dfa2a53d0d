"""The steps of a run after its last round: figures, summary, files."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fesem_jax.core import placement
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
from fesem_jax.run.selecting import draw


def finish(run: Replicate, began: np.ndarray, measure: Callable[[], Any]) -> Result:
  """The result of a run after its last round, written into its workdir.

  `began` is `programs.clock` at the beginning, and `measure` measures the last state.
  Raises the error of a run that diverged.
  """
  if run.error is not None:
    raise run.error
  spec, history, model = run.spec, run.out.records, run.algorithm.local.model
  saved = None
  if run.measured is None and spec.workdir is not None:  # No round was left.
    saved = read_result(spec.workdir, history, spec.make_portrait)
  summary, clients, picture = saved or _measured(run, began, measure)
  (*earlier, last), task, used = history, model.measured_as, run.runner.deployed
  since = max(p.first_round for p in spec.phases if p.first_round <= last['round'])
  every = spec.eval_every
  due = [r for r in earlier if every and r['round'] % every == 0]
  due = [*(r for r in due if r['round'] >= since), last]
  is_one = used.personal is None and used.mixture is None and used.num_models() == 1
  one = last['deployed'][task.primary_column] if is_one else None
  result = Result(
    clients,
    summary
    | {
      'reports': curves.reports(due, task),
      'fairness': client_table.fairness_of(clients, task.primary),
      f'global_{task.primary.name}': one,
      **({'data_since': since} if spec.later_phases else {}),
    },
    history,
    lambda: picture or _portrait(run),
    whole_model(model),
    run.state,
    run.splits[0],
    run.places,
    lambda: run.deploy(run.state),
  )
  now = {'record': last, 'records': tuple(earlier), 'state': None}
  event = run.event(result=result, reason=run.reason or '', **now)
  call(run.callbacks, 'on_end', event, result.summary)
  if event.columns:
    clients = client_table.with_columns(clients, event.columns, 'columns')
    result = dataclasses.replace(result, clients=clients)
  if spec.workdir is not None:
    picture = result.portrait if spec.make_portrait else {}
    before = saved and saved[0]
    write_result(spec.workdir, result, picture, spec.save_models, before)
  return result


def _measured(run: Replicate, began: np.ndarray, measure: Callable[[], Any]) -> Any:
  """The summary, the table of clients, and what figures show of them in a workdir."""
  if run.measured is None:
    run.measure_again(measure(), run.state)
  assert run.measured is not None
  spec, state, train = run.spec, run.state, run.splits[0]
  counts = label_counts(run.on_host)
  picture = _portrait(run) if spec.workdir is not None and spec.make_portrait else None
  total, compiled = (programs.clock() - began).tolist()
  timing = records.timing(compiled, total, run.seconds, run.steps)
  if run.runner.count > 1:
    timing |= {'runs_at_once': run.runner.count}
  local, personal, task = run.algorithm.local, run.runner.deployed.personal, run.task
  others = None
  if spec.unseen is not None and personal is None:
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
  if spec.clients_per_round and spec.selection is None and personal is not None:
    ids = [draw(spec, train, number).ids for number in range(1, run.done + 1)]
    drawn = np.isin(np.arange(len(counts)), ids)
    deployed = evaluation.scores_of(run.measured.deployed, drawn, task)
    summary |= {'trained': float(drawn.mean()), 'trained_deployed': deployed}
  summary['checks'] = [*run.found, *check_after(spec, summary, run.out.records)]
  return summary, client_table.make(run.measured, train, run.places, task), picture


def _portrait(run: Replicate) -> dict[str, np.ndarray]:
  """Values that figures show of the clients; see `Result`."""
  picture = figure_data.client_data(run.on_host)
  if run.runner.deployed.has_clusters():
    args = run.algorithm, run.state, run.splits[0], run.spec.seed
    picture |= figure_data.draw(*figure_data.local_models(*args), run.places)
    picture |= figure_data.sheets(picture, run.on_host)
  return picture
