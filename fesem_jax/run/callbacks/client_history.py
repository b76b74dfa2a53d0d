"""Records every client in every N-th round."""

import numpy as np

from fesem_jax.core.algorithm import RoundInfo
from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.run.results import client_history
from fesem_jax.run.results.client_history import Part
from fesem_jax.run.results.client_table import as_text
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, checked


class ClientHistory(Callback):
  """Writes `history.parquet` into the workdir, a file a round.

  `load_run(workdir).client_history` reads it; see `results.client_history`. A round
  takes about 25 bytes per client in memory and on disk. The losses and steps of the
  clients are fetched from the device in every round. Round 0 contains the first
  clusters of the method.

  Args:
    every: records every `every`-th round; metrics are available in evaluated rounds.

  Raises:
    UserError: at the start of a run without a workdir.
  """

  wants_clients = True

  @checked
  def __init__(self, every: Count = 1):
    self.every = every

  def on_start(self, event: Event) -> None:
    """Deletes records of rounds that the resumed run repeats."""
    check(event.workdir, 'client_metrics_every: needs a workdir to write into')
    assert event.workdir is not None
    self._folder = event.workdir
    self._names = as_text(event.train.info.names)
    self._examples = np.asarray(event.train.sizes())
    processes.from_first(lambda: client_history.begin(self._folder, event.number))
    if not event.number and event.clusters is not None:
      self._write(event)

  def on_round(self, event: Event) -> None:
    """Writes the clients of the round."""
    if event.info is not None and not event.number % self.every:
      self._write(event)

  def _write(self, event: Event) -> None:
    places = event.arranged.places
    part = part_of(event.info, event.assignment, places, self._examples)
    if event.clients is not None:
      name = event.algorithm.local.model.measured_as.primary.name
      columns = event.clients
      for kind in ('deployed', 'finetuned'):
        part[kind] = np.asarray(columns[f'{kind}_{name}'])
    processes.from_first(
      lambda: client_history.write_part(self._folder, event.number, self._names, part)
    )


def part_of(
  info: RoundInfo | None,
  assignment: np.ndarray | None,
  places: np.ndarray,
  examples: np.ndarray,
) -> Part:
  """The columns of a round before an evaluation, clients in the order of their names.

  Args:
    info: what the method told; None before the first round.
    assignment: [M] cluster of each client; None without clusters.
    places: [M] position of each client in the data as arranged.
    examples: [M] training examples of each client.
  """
  count, clients = len(examples), info and info.clients
  if assignment is None:
    assignment = np.full(count, -1)
  elif info is not None and info.clusters is not None:
    joined = assignment < len(info.clusters.sizes)
    assignment = np.where(joined, assignment, -1)
  loss, unknown = np.full(count, np.nan), np.full(count, np.nan)
  took_part, failed = np.zeros(count, bool), np.zeros(count, bool)
  steps = np.full(count, -1 if info is not None and clients is None else 0)
  if clients is not None:
    exist = np.asarray(clients.ids) < count
    ids, losses, finite, arrived, taken = (np.asarray(x)[exist] for x in clients)
    own = np.argsort(places)[ids]  # Position as arranged -> that of the user.
    took_part[own], failed[own] = arrived & finite, ~finite
    loss[own], steps[own] = np.where(arrived, losses, np.nan), taken
  return {
    'assignment': assignment, 'loss': loss, 'deployed': unknown, 'finetuned': unknown,
    'examples': examples, 'steps': steps, 'took_part': took_part, 'failed': failed,
  }  # fmt: skip
