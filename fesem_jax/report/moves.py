"""The cluster of each client in each round, where a run keeps their history."""

import pathlib
from typing import Any

import numpy as np

from fesem_jax.report.flows import flows
from fesem_jax.utils.display import printable
from fesem_jax.utils.safe_files import read_npz, reading

# Clients and rounds of the picture.
_CLIENTS, _ROUNDS = 150, 120
# Of a history that is read for it.
_ROWS = 20_000_000
_COLUMNS = ('round', 'client', 'assignment')


def moves(folder: pathlib.Path, places: np.ndarray) -> dict[str, Any] | None:
  """Assignments over rounds; None where the workdir has no history of them.

  Of many clients, those that moved most often are shown in the grid, then others at
  even distances among the clusters. Flows are of all clients.

  Args:
    folder: the workdir.
    places: [K] place that the page shows each cluster at; several may share one.

  Returns:
    `rounds` [R], `clients` [C] as the history names them, the places of their clusters
    `grid` [C, R], -1 before the first one is known, `moved`, how many of `of` clients
    ever moved, and `flows`, see `flows.flows`.
  """
  held = _history(folder)
  if held is None:
    return None
  number, who, cluster = (held[name] for name in _COLUMNS)
  cluster = np.nan_to_num(cluster, nan=-1)
  known = (cluster >= 0) & (cluster < len(places))  # Others have yet to join.
  number, who, cluster = number[known], who[known], cluster[known].astype(int)
  if not len(number):
    return None
  rounds, at_round = np.unique(number, return_inverse=True)
  clients, at_client = np.unique(who, return_inverse=True)
  grid = np.full((len(clients), len(rounds)), -1)
  grid[at_client, at_round] = cluster
  # Where a round says nothing of a client, it stays where it was.
  seen = np.maximum.accumulate(np.where(grid >= 0, np.arange(len(rounds)), 0), axis=1)
  whole = np.take_along_axis(grid, seen, axis=1)
  changed = (whole[:, 1:] != whole[:, :-1]) & (whole[:, :-1] >= 0)
  often = changed.sum(axis=1)
  shown = _chosen(often, whole[:, -1])
  kept = np.unique(np.linspace(0, len(rounds) - 1, _ROUNDS).astype(int))
  placed = np.where(whole >= 0, places[whole], -1)
  return {
    'rounds': rounds[kept].tolist(),
    'clients': [printable(name, 60) for name in clients[shown].tolist()],
    'grid': placed[np.ix_(shown, kept)].tolist(),
    'moved': int((often > 0).sum()),
    'of': len(clients),
    'flows': flows(rounds, clients.tolist(), placed, int(places.max()) + 1),
  }


def _chosen(often: np.ndarray, last: np.ndarray) -> np.ndarray:
  """Places of the clients that are shown, by their last cluster."""
  if len(often) > _CLIENTS:
    most = np.argsort(-often, kind='stable')[: _CLIENTS // 2]
    most = most[often[most] > 0]
    rest = np.setdiff1d(np.argsort(last, kind='stable'), most, assume_unique=True)
    evenly = np.linspace(0, len(rest) - 1, _CLIENTS - len(most)).astype(int)
    shown = np.concatenate([most, rest[evenly]])
  else:
    shown = np.arange(len(often))
  return shown[np.argsort(last[shown], kind='stable')]


def _history(folder: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The columns that are needed of history.npz or history.parquet.

  None where neither is there, or where they hold more than `_ROWS` rows.
  """
  packed, columns = folder / 'history.npz', folder / 'history.parquet'
  held: dict[str, np.ndarray] = {}
  if columns.is_file():
    held = _of_parquet(columns)
  elif packed.is_file() and packed.stat().st_size <= _ROWS:
    held = read_npz(packed)
    if 'names' in held and set(_COLUMNS) <= held.keys():
      held['client'] = held['names'][held['client']]
  return held if set(_COLUMNS) <= held.keys() else None


def _of_parquet(path: pathlib.Path) -> dict[str, np.ndarray]:
  try:
    import pyarrow  # An optional dependency.
    from pyarrow import parquet
  except ImportError:
    return {}
  with reading(path), parquet.ParquetFile(path) as file:
    if file.metadata.num_rows > _ROWS or not set(_COLUMNS) <= set(file.schema.names):
      return {}
    table = file.read(columns=list(_COLUMNS))
    names = table['client'].cast(pyarrow.string())
    return {
      'round': table['round'].to_numpy(),
      'client': names.to_numpy(zero_copy_only=False).astype(str),
      'assignment': table['assignment'].cast(pyarrow.float64()).to_numpy(),
    }
