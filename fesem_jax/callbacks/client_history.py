"""Records every client in every N-th round."""

import numpy as np

from fesem_jax.callbacks.callback import Callback
from fesem_jax.callbacks.events import End, Evaluation, Round, RoundEnd, Start
from fesem_jax.results import client_history
from fesem_jax.results.client_history import Part
from fesem_jax.results.client_rounds import part_of
from fesem_jax.results.client_table import as_text
from fesem_jax.utils import processes
from fesem_jax.utils.errors import UserError, check_at_least


class ClientHistory(Callback):
  """Writes `history.parquet`, or `history.npz` without pyarrow, into the workdir.

  `load_run(workdir).client_history` reads it; see `results.client_history`. A round
  needs about 25 bytes a client in memory and on disk, and its clients' losses and
  steps come from the device in every round. Round 0 are the clusters that the method
  starts from.

  Args:
    every: rounds whose number this divides are recorded; their figures are known where
      they are evaluated.

  Raises:
    UserError: on a number below 1, or, when it starts, without a workdir.
  """

  wants_clients = True

  def __init__(self, every: int = 1):
    check_at_least(1, client_metrics_every=every)
    self.every = every
    self._part: Part = {}

  def on_start(self, start: Start) -> None:
    """Forgets rounds that are done again."""
    if start.workdir is None:
      raise UserError('`client_metrics_every` needs a `workdir` to write into.')
    self._part = {}
    self._folder, self._task = start.workdir, start.algorithm.local.model.task
    self._names = as_text(start.train.info.names)
    self._examples, self._since = np.asarray(start.train.sizes()), start.done
    processes.from_first(lambda: client_history.begin(self._folder, start.done))

  def on_round(self, event: Round) -> None:
    """Takes what became of the clients of a round."""
    if event.number % self.every:
      return
    places = event.arranged.places
    self._part = part_of(event.info, event.assignment, places, self._examples)

  def on_evaluation(self, event: Evaluation) -> None:
    """Takes the figures of the clients, and the clusters that they deploy from."""
    if self._part:
      name, columns = self._task.primary.name, event.clients.columns()
      for kind in ('deployed', 'finetuned'):
        self._part[kind] = np.asarray(columns[f'{kind}_{name}'])
      if event.assignment is not None:
        self._part['assignment'] = event.assignment

  def on_round_end(self, event: RoundEnd) -> None:
    """Keeps a round."""
    if not event.number:
      places = event.arranged.places
      self._part = part_of(None, event.assignment, places, self._examples)
    if part := self._part:
      processes.from_first(
        lambda: client_history.write_part(self._folder, event.number, part)
      )
    self._part = {}

  def on_end(self, event: End) -> None:
    """Makes one file of all rounds."""
    done = event.records[-1]['round']
    processes.from_first(
      lambda: client_history.finish(self._folder, self._names, self._since, done)
    )
