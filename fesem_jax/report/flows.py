"""Flows of clients between clusters, between the rounds of a history."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.utils.display import printable

# Rounds that are shown, and names of clients that a flow has.
_ROUNDS, _NAMES = 9, 5


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
    `rounds` [S] that are shown, the `sizes` [S, count] of clusters there, and `links`,
    a list of [place of the round among those shown, cluster there, cluster in the next
    one, clients, names of some of them if they moved].
  """
  changed = (grid[:, 1:] != grid[:, :-1]) & (grid[:, :-1] >= 0)
  if not changed.any():
    return None
  shown = _shown(changed.sum(axis=0))
  links: list[list[Any]] = []
  for place, (a, b) in enumerate(itertools.pairwise(shown)):
    known = np.flatnonzero(grid[:, a] >= 0)
    pairs = grid[known, a] * count + grid[known, b]
    for pair in np.unique(pairs):
      source, target = divmod(int(pair), count)
      who = known[pairs == pair]
      named = who[:_NAMES] if source != target else []
      names = [printable(clients[i], 60) for i in named]
      links.append([place, source, target, len(who), names])
  sizes = [np.bincount(x[x >= 0], minlength=count).tolist() for x in grid[:, shown].T]
  return {'rounds': rounds[shown].tolist(), 'sizes': sizes, 'links': links}


def _shown(moved: np.ndarray) -> np.ndarray:
  """Places of the rounds that are shown.

  `moved` [R - 1] counts the clients that move from each round to the next.
  """
  moves, last = np.flatnonzero(moved), len(moved)
  shown = np.unique([0, *moves, *(moves + 1), last])
  if len(shown) <= _ROUNDS:
    return shown
  so_far = np.cumsum(moved)
  shares = np.linspace(0, so_far[-1], _ROUNDS)[1:-1]
  return np.unique([0, *(np.searchsorted(so_far, shares) + 1), last])
