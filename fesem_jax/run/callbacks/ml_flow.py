"""Scalars of a run for MLflow."""

import logging
import os
import re
import time
from typing import Any

from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import End, RoundEnd, Start
from fesem_jax.run.callbacks.logged_runs import logged_run, run_name, scalars
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.interrupts import Stopped

_AT_ONCE = 1000  # Metrics that a server takes in one call.


class MLflow(Callback):
  """Logs every number of the records to MLflow, by round.

  Writes to `workdir/mlflow.db`, or to MLFLOW_TRACKING_URI if the environment sets it.
  A resumed run logs to the same MLflow run, also earlier rounds that it lacks.
  """

  def __init__(self) -> None:
    os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
    from mlflow import MlflowClient, entities  # Slow to import, and optional.

    self._connect, self._entities = MlflowClient, entities
    self._client: Any = None

  def on_start(self, start: Start) -> None:
    """Keeps the run for the first call of `on_round_end`."""
    self._start, self._client = start, None

  def on_round_end(self, event: RoundEnd) -> None:
    """Logs the round's numbers, unless they are logged already."""
    if not processes.is_first():
      return
    if self._client is None:
      self._open()
      for record in self._start.records:
        self._log(record['round'], record)
    self._log(event.number, event.record)

  def _log(self, number: int, record: Record) -> None:
    if number <= self._logged:
      return
    now = int(time.time() * 1000)
    metrics = [
      self._entities.Metric(re.sub(r'[^\w\-./: ]', '_', name), value, now, number)
      for name, value in scalars(record)
    ]
    for i in range(0, len(metrics), _AT_ONCE):
      self._client.log_batch(self._run, metrics=metrics[i : i + _AT_ONCE])

  def on_end(self, event: End) -> None:
    """Logs why the run ended."""
    if self._client is not None:
      self._client.set_tag(self._run, 'ended', event.reason)

  def close(self, error: BaseException | None) -> None:
    """Ends the logged run."""
    if self._client is not None:
      stopped = isinstance(error, Stopped | KeyboardInterrupt)
      status = 'KILLED' if stopped else 'FAILED'
      self._client.set_terminated(self._run, status if error else 'FINISHED')

  def _open(self) -> None:
    """Makes an MLflow run, or opens that which a resumed run continues."""
    for chatty in ('mlflow', 'alembic'):
      logging.getLogger(chatty).setLevel(logging.WARNING)
    folder, config = self._start.workdir, self._start.config or {}
    local = None if folder is None else f'sqlite:///{folder.absolute()}/mlflow.db'
    client = self._connect(os.environ.get('MLFLOW_TRACKING_URI', local))
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'fesem_jax')
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)

    def create() -> str:
      run = client.create_run(experiment, run_name=run_name(folder)).info.run_id
      for key, value in ({'seed': self._start.seed} | config).items():
        client.log_param(run, key, str(value)[:500])
      return run

    self._run, was_there = logged_run(folder, 'mlflow', create)
    self._client = client  # `close` ends the run of a client that it finds.
    self._logged = -1  # The last round that the run has.
    if was_there:
      client.update_run(self._run, status='RUNNING')
      history = client.get_metric_history(self._run, 'seconds')
      self._logged = max((metric.step for metric in history), default=-1)
