"""Cluster of one client of a finished run, and the alternatives."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.results import client_history
from fesem_jax.run.results.client_table import position_of
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.text_tables import Column, Table


@dataclasses.dataclass(frozen=True)
class Explanation:
  """A client of a run; `print` shows it.

  Attributes:
    client: its name.
    figures: its line of `clients.csv`, with the cluster, and with regret and margin
      where `callbacks.AssignmentRegret` has measured them.
    history: its columns of `history.parquet`, a row for each recorded round; None where
      none was recorded.
    distances: round -> squared L2 distances [K] of its local model to the centers after
      that round; empty unless `callbacks.CenterDistances` has recorded them.
    losses: [K] mean loss of each center on its examples; None without data.
  """

  client: str
  figures: dict[str, Any]
  history: dict[str, np.ndarray] | None
  losses: np.ndarray | None
  distances: dict[int, np.ndarray]

  def __str__(self) -> str:
    known = [f'{k} {_short(v)}' for k, v in self.figures.items() if v is not None]
    parts = [', '.join(known)]
    if self.losses is not None:
      own = self.figures['cluster']
      rows = [
        [k, float(loss), 'own' if k == own else '', float(loss - self.losses[own])]
        for k, loss in enumerate(self.losses)
      ]
      columns = [
        Column('cluster', 'center', 'd'), Column('loss', 'loss', '.4f'),
        Column('own', ''), Column('more', 'minus own', '+.4f'),
      ]  # fmt: skip
      parts.append(str(Table(columns, rows)))
    if self.history is not None:
      shown = ('round', 'assignment', 'loss', 'deployed', 'finetuned')
      columns = [Column(n, n, 'd' if n in shown[:2] else '.4f') for n in shown]
      values = zip(*(self.history[n].tolist() for n in shown), strict=True)
      parts.append(str(Table(columns, list(values))))
    if self.distances:
      count = max(map(len, self.distances.values()))
      columns = [Column('round', 'round', 'd')]
      columns += [Column(f'center{k}', f'to center {k}', '.4g') for k in range(count)]
      rows = [[r, *values.tolist()] for r, values in self.distances.items()]
      parts.append('Squared distances:\n' + str(Table(columns, rows)))
    return '\n\n'.join(parts)


def _short(value: Any) -> str:
  return f'{value:.4g}' if isinstance(value, float) else str(value)


def explain(run: Any, client: str, data: FederatedData | None = None) -> Explanation:
  """See `Run.explain`."""
  figures = run.clients.of(client)
  try:
    history = run.client_history.of(client)
  except UserError:
    if client_history.exists(run.workdir):
      raise
    history = None
  losses = None if data is None else _losses(run, client, data)
  distances = {
    r['round']: np.array(r['center_distances'][client], float)
    for r in run.history
    if client in r.get('center_distances', {})
  }
  return Explanation(client, figures, history, losses, distances)


def _losses(run: Any, client: str, data: FederatedData) -> np.ndarray:
  """[K] mean loss of each center on the examples that a client has in `data`."""
  models = run.deployed
  has_centers = not models.own and models.mixture is None
  chooses = has_centers and run.clients.cluster is not None
  check(chooses, 'data: clients of this run do not choose a center; leave it out')
  x, y = data.client(position_of(client, np.asarray(data.info.names).astype(str)))
  losses = []
  for k in range(models.num_models):
    outputs = jnp.asarray(models.outputs(x, cluster=k))
    assert models.model is not None
    losses.append(float(jnp.mean(models.model.loss(outputs, jnp.asarray(y)))))
  return np.array(losses)
