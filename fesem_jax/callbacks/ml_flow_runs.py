"""The MLflow run that belongs to a run."""

import logging
import os
from collections.abc import Callable
from typing import Any

from fesem_jax.callbacks.events import Start
from fesem_jax.callbacks.logged_runs import logged_run, run_name


def opened(connect: Callable[[str | None], Any], start: Start) -> tuple[Any, str, int]:
  """A new MLflow run, or the one that a resumed run continues.

  Args:
    connect: address of a store -> MLflow's client.
    start: of the run.

  Returns:
    The client, the id of the MLflow run, and the last logged round, -1 for none.
  """
  for chatty in ('mlflow', 'alembic'):
    logging.getLogger(chatty).setLevel(logging.WARNING)
  folder = start.workdir
  local = None if folder is None else f'sqlite:///{folder.absolute()}/mlflow.db'
  client = connect(os.environ.get('MLFLOW_TRACKING_URI', local))
  name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'fesem_jax')
  known = client.get_experiment_by_name(name)
  experiment = known.experiment_id if known else client.create_experiment(name)

  def create() -> str:
    run = client.create_run(experiment, run_name=run_name(folder)).info.run_id
    for key, value in ({'seed': start.seed} | (start.config or {})).items():
      client.log_param(run, key, str(value)[:500])
    return run

  run, was_there = logged_run(folder, 'mlflow', create)
  if not was_there:
    return client, run, -1
  client.update_run(run, status='RUNNING')
  steps = [metric.step for metric in client.get_metric_history(run, 'seconds')]
  return client, run, max(steps, default=-1)
