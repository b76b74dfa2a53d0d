"""Inputs of figures: a run's records, configuration and clients."""

import pathlib
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.run.results import costs, saved_client_table
from fesem_jax.run.results.metrics_file import (
  method_label,
  read_clients,
  read_config,
  read_metrics,
  with_rounds_done,
)
from fesem_jax.run.results.truth import TrueClusters, true_clusters
from fesem_jax.tasks import Task
from fesem_jax.utils.display import in_figure, method_name
from fesem_jax.utils.errors import check

# What may stand below curves in place of rounds -> what a title says, and the name of
# the file.
OVER = {
  'gigabytes': ('by what was sent', 'by_gigabytes'),
  'simulated_seconds': ('by time on devices', 'by_seconds'),
  'epsilon': ('by privacy', 'by_epsilon'),
}


class PlottedRun:
  """A run read from its workdir.

  Args:
    workdir: of `fesem-run` or `simulate`.
    label: for legends; '' is that of the method.

  Attributes:
    name: label for legends, e.g. "FeSEM(4)".
    config: what config.json holds, with the rounds that were done where the run went on
      for more; empty where there is none.
    dataset: its name, or the workdir's.
    history: records of metrics.jsonl.
    clients: arrays of clients.npz; empty while the run goes on.

  Raises:
    UserError: if the folder holds no run, or a file of it is damaged.
  """

  def __init__(self, workdir: str | pathlib.Path, label: str = ''):
    self.workdir = pathlib.Path(workdir)
    self.history = read_metrics(self.workdir / 'metrics.jsonl')
    check(self.history, f'{workdir}: holds no run; its metrics.jsonl has no round')
    config = with_rounds_done(read_config(self.workdir) or {}, self.history)
    self.clients = read_clients(self.workdir)
    self.name = method_name(label or method_label(config) or self.workdir.name)
    self.config = config
    self.dataset = config.get('dataset') or self.workdir.name

  def series(self, *path: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and values of a metric, e.g. `series('finetuned', 'micro_f1')`."""
    rounds, values = [], []
    for record in self.history:
      value: Any = record
      for key in path:
        value = value.get(key) if isinstance(value, dict) else None
      if value is not None:
        rounds.append(record['round'])
        values.append(value)
    return np.array(rounds), np.array(values)

  def until(self, over: str) -> dict[int, float]:
    """Amounts that a run has sent, taken or spent until the end of each round.

    `over` is a key of `OVER`. Empty where the run has none of it, or does not say.
    """
    if over == 'gigabytes':
      rounds, values = costs.gigabytes(self.history)
    else:
      at, numbers = self.series(over)
      rounds = at.tolist()
      values = (np.cumsum(numbers) if over == 'simulated_seconds' else numbers).tolist()
    return dict(zip(rounds, values, strict=True)) if any(values) else {}

  @property
  def of_honest(self) -> str:
    """', honest clients' where others are bad, whom figures leave out; '' elsewhere."""
    return ', honest clients' * any('honest' in r for r in self.history)

  @property
  def on_validation(self) -> str:
    """', validation examples' where figures are of these; '' of test examples."""
    return ', validation examples' * (self.config.get('evaluate_on') == 'validation')

  def scores(self, kind: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and values of a score, of the honest clients where others are bad."""
    above = ('honest',) if self.of_honest else ()
    return self.series(*above, kind, column)

  @property
  def task(self) -> Task:
    """The task of the models of the run."""
    measured = (r['deployed'] for r in self.history if 'deployed' in r)
    return tasks.of_scores(next(measured, {}))

  def client_figures(self, name: str) -> np.ndarray | None:
    """[M] a column of clients.csv, such as 'deployed_accuracy'; None without it.

    Bad clients are left out.
    """
    table = saved_client_table.read(self.workdir)
    column = None if table is None else table.columns().get(name)
    if table is None or column is None or table.honest is None:
      return column
    return column[table.honest]

  def truth(self) -> TrueClusters | None:
    """The true clusters of the clients; None where clients.npz has none."""
    held = self.clients
    return true_clusters(held.get('truth'), held.get('truth_names'), in_figure)
