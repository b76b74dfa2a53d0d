"""Scalars of a run for Weights & Biases."""

import os
import secrets
from typing import Any

from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import End, RoundEnd, Start
from fesem_jax.run.callbacks.logged_runs import (
  keep_rounds,
  logged_run,
  rounds_logged,
  run_name,
  scalars,
)
from fesem_jax.utils import processes


class WeightsAndBiases(Callback):
  """Logs every number of the records to Weights & Biases, by round.

  Runs are written to `workdir/wandb/`, and nothing is sent until `wandb sync`, unless
  the environment sets WANDB_MODE=online. A resumed run logs under the same id, so
  Weights & Biases merges both parts into one run. It logs earlier rounds again unless
  a call that ended them in order had logged them: Weights & Biases keeps what it writes
  in memory, and a process that is killed loses it.
  """

  def __init__(self) -> None:
    self._mode: Any = os.environ.get('WANDB_MODE', 'offline')
    if self._mode == 'offline':  # Else it sends error reports even then.
      os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
    from wandb import Settings, init  # An optional dependency, and slow to import.

    self._settings, self._init = Settings, init
    self._start: Start | None = None
    self._run: Any = None
    self._number = 0  # The last round that it has.

  def on_start(self, start: Start) -> None:
    """Keeps the run for the first call of `on_round_end`."""
    self._start, self._run = start, None

  def on_round_end(self, event: RoundEnd) -> None:
    """Logs the round's numbers."""
    if not processes.is_first():
      return
    if self._run is None:
      assert self._start is not None
      self._run = self._begun()
      known = rounds_logged(self._start.workdir, 'wandb')
      for record in self._start.records:
        if record['round'] > known:
          self._run.log(dict(scalars(record)), step=record['round'])
    self._run.log(dict(scalars(event.record)), step=event.number)
    self._number = event.number

  def on_end(self, event: End) -> None:
    """Logs why the run ended."""
    if self._run is not None:
      self._run.summary['ended'] = event.reason

  def close(self, error: BaseException | None) -> None:
    """Ends the logged run, marked as failed after an error."""
    if self._run is not None:
      self._run.finish(exit_code=0 if error is None else 1)
      assert self._start is not None
      keep_rounds(self._start.workdir, 'wandb', self._number)

  def _begun(self) -> Any:
    assert self._start is not None
    folder = self._start.workdir
    name, _ = logged_run(folder, 'wandb', lambda: secrets.token_hex(8))
    return self._init(
      project=os.environ.get('WANDB_PROJECT', 'fesem_jax'),
      name=run_name(folder),
      id=name,
      resume='allow',
      reinit='create_new',  # Leaves other runs of the caller open.
      mode=self._mode,
      dir=folder,
      config={'seed': self._start.seed} | (self._start.config or {}),
      settings=self._settings(silent=True, console='off'),
    )
