"""Moves of clients between clusters, for the report page and for figures."""

import importlib.util
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.run.results import client_history
from fesem_jax.utils.display import printable

# Clients and rounds of the picture.
_CLIENTS, _ROUNDS = 150, 120
# Rounds and clusters of the picture of sizes.
_SIZES, _CLUSTERS = 200, 20
# Of a history that is read for it.
_ROWS = 20_000_000
_COLUMNS = ('round', 'client', 'assignment')


def sizes_by_round(
  records: Sequence[dict[str, Any]],
) -> tuple[dict[str, Any], np.ndarray]:
  """Sizes of clusters over rounds; of many clusters, the largest.

  Args:
    records: lines of `metrics.jsonl` that have `cluster_sizes`, at least one.

  Returns:
    `rounds`, `names` and `sizes`, and the place of each cluster [K] among the names.
  """
  count = max(len(r['cluster_sizes']) for r in records)
  kept = np.unique(np.linspace(0, len(records) - 1, _SIZES).astype(int))
  rows = [records[i]['cluster_sizes'] for i in kept]
  sizes = np.array([[*row, *[0] * (count - len(row))] for row in rows])
  names, places = [str(k) for k in range(count)], np.arange(count)
  if count > _CLUSTERS:
    order = np.argsort(-sizes[-1], kind='stable')
    top, others = np.sort(order[:_CLUSTERS]), order[_CLUSTERS:]
    places = np.full(count, _CLUSTERS)
    places[top] = np.arange(_CLUSTERS)
    of_others = sizes[:, others].sum(axis=1, keepdims=True)
    sizes = np.concatenate([sizes[:, top], of_others], axis=1)
    names = [*map(str, top), f'{len(others)} others']
  table = {
    'rounds': [records[i]['round'] for i in kept],
    'names': names,
    'sizes': sizes.tolist(),
  }
  return table, places


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
    ever moved, and `flows`, see `flows`.
  """
  held = _history(folder)
  if held is None:
    return None
  number, who, cluster = (held[name] for name in _COLUMNS)
  known = (cluster >= 0) & (cluster < len(places))  # Others have yet to join.
  number, who, cluster = number[known], who[known], cluster[known]
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
    others = np.setdiff1d(np.argsort(last, kind='stable'), most, assume_unique=True)
    evenly = np.linspace(0, len(others) - 1, _CLIENTS - len(most)).astype(int)
    shown = np.concatenate([most, others[evenly]])
  else:
    shown = np.arange(len(often))
  return shown[np.argsort(last[shown], kind='stable')]


def _history(folder: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The columns that are needed of a history.

  None where there is none, it has more than `_ROWS` rows, or nothing can read it.
  """
  # Optional, and slow to import.
  if not any(folder.glob('history.*')) or importlib.util.find_spec('pyarrow') is None:
    return None
  held = client_history.read(folder)
  if len(held.rounds) * len(held.names) > _ROWS:
    return None
  return held.columns(names=_COLUMNS)


# Rounds that are shown, and names of clients that a flow has.
_SHOWN_ROUNDS, _NAMES = 9, 5
_GAP = 0.03  # Between blocks, of all clients.


def flows(
  rounds: np.ndarray, clients: Sequence[str], grid: np.ndarray, count: int
) -> dict[str, Any] | None:
  """The flows between the rounds in which clients move; None where none moves.

  The first and the last round are shown, and those before and after each move. Where
  these are too many, about as many clients move from each shown round to the next.

  Args:
    rounds: [R] numbers, in order.
    clients: [C] names.
    grid: [C, R] cluster of each client, -1 before the first one is known.
    count: of clusters.

  Returns:
    `rounds` [S] that are shown; the `sizes` [S, count] of clusters there, and where
    their blocks begin, `lows` [S, count], in clients from below; and `links`, a list of
    [place of the round among those shown, cluster there, cluster in the next one,
    clients, names of some of them if they moved, where the band begins there and in the
    next one].
  """
  changed = (grid[:, 1:] != grid[:, :-1]) & (grid[:, :-1] >= 0)
  if not changed.any():
    return None
  shown = _shown(changed.sum(axis=0))
  columns = [grid[:, at] for at in shown]
  sizes = np.array([np.bincount(x[x >= 0], minlength=count) for x in columns])
  above = sizes + (sizes > 0) * _GAP * sizes.sum(axis=1).max()
  lows = above.cumsum(axis=1) - above
  links: list[list[Any]] = []
  for place, (a, b) in enumerate(itertools.pairwise(columns)):
    known, start, end = (
      np.flatnonzero(a >= 0),
      lows[place].copy(),
      lows[place + 1].copy(),
    )
    pairs = a[known] * count + b[known]
    for pair in np.unique(pairs):
      source, target = divmod(int(pair), count)
      who = known[pairs == pair]
      named = who[:_NAMES] if source != target else []
      names = [printable(clients[i], 60) for i in named]
      begins = [round(float(x), 3) for x in (start[source], end[target])]
      links.append([place, source, target, len(who), names, *begins])
      start[source] += len(who)
      end[target] += len(who)
  return {
    'rounds': rounds[shown].tolist(),
    'sizes': sizes.tolist(),
    'lows': lows.round(3).tolist(),
    'links': links,
  }


def _shown(moved: np.ndarray) -> np.ndarray:
  """Places of the rounds that are shown.

  `moved` [R - 1] counts the clients that move from each round to the next.
  """
  moves, last = np.flatnonzero(moved), len(moved)
  shown = np.unique([0, *moves, *(moves + 1), last])
  if len(shown) <= _SHOWN_ROUNDS:
    return shown
  so_far = np.cumsum(moved)
  shares = np.linspace(0, so_far[-1], _SHOWN_ROUNDS)[1:-1]
  return np.unique([0, *(np.searchsorted(so_far, shares) + 1), last])
