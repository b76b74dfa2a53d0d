"""The clusters of a page: sizes over rounds, moves of clients, sheets of images."""

import base64
import importlib.util
import io
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.analysis.report.runs import ReportedRun, first_of_each_method
from fesem_jax.run.results import client_history
from fesem_jax.run.results.pictures import laid_out
from fesem_jax.run.results.truth import mix, true_clusters
from fesem_jax.utils.display import printable

# Bytes of all sheets together, and pixels of the widest one.
_SHEET_BYTES, _WIDTH = 1_000_000, 480
# Rounds and clusters of the sizes; rounds and names of the flows; a gap between blocks.
_SIZES, _CLUSTERS, _ROUNDS, _NAMES, _GAP = 200, 20, 9, 5, 0.03


def clusters(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
  """The clusters of the runs that have any.

  Returns for each run its place as `run`, the `rounds` and the `sizes` [R, K] of
  clusters; and, where they are known, `moves_by_round`, a list of [round, clients that
  moved] of the rounds with moves, `moves` (see `moves`) and `sheets`.
  """
  entries, room = [], _SHEET_BYTES
  for i in first_of_each_method(runs):
    run = runs[i]
    records = [r for r in run.history if r.get('cluster_sizes')]
    if not records:
      continue
    sizes, places = _sizes_by_round(records)
    sheets, used = _sheets(run, room)
    room -= used
    moved = {r['round']: r['moved'] for r in run.history if 'moved' in r}
    by_round = [[number, count] for number, count in moved.items() if count]
    entry = {'moves_by_round': by_round if moved else None, 'sheets': sheets}
    entries.append(sizes | {'run': i, 'moves': _moves(run, places)} | entry)
  return entries


def _sizes_by_round(records: Sequence[Any]) -> tuple[dict[str, Any], np.ndarray]:
  """Sizes of the largest clusters over rounds, and the place of each cluster [K]."""
  count = max(len(r['cluster_sizes']) for r in records)
  chosen = np.unique(np.linspace(0, len(records) - 1, _SIZES).astype(int))
  rows = [records[i]['cluster_sizes'] for i in chosen]
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
  rounds = [records[i]['round'] for i in chosen]
  return {'rounds': rounds, 'names': names, 'sizes': sizes.tolist()}, places


def _moves(run: ReportedRun, places: np.ndarray) -> dict[str, Any] | None:
  """How many of the clients `moved`, `of` all, and `flows`; None without a history."""
  exists = client_history.exists(run.folder)
  if not exists or importlib.util.find_spec('pyarrow') is None:
    return None
  columns = client_history.read(run.folder).columns(
    names=('round', 'client', 'assignment')
  )
  rounds, at_round = np.unique(columns['round'], return_inverse=True)
  clients, at_client = np.unique(columns['client'], return_inverse=True)
  cluster = columns['assignment']
  joined = (cluster >= 0) & (cluster < len(places))  # Others have yet to join.
  grid = np.full((len(clients), len(rounds)), -1)
  grid[at_client[joined], at_round[joined]] = places[cluster[joined]]
  # Where a round says nothing of a client, it stays where it was.
  last = np.maximum.accumulate(np.where(grid >= 0, np.arange(len(rounds)), 0), axis=1)
  grid = np.take_along_axis(grid, last, axis=1)
  changed = (grid[:, 1:] != grid[:, :-1]) & (grid[:, :-1] >= 0)
  moved = int(changed.any(axis=1).sum())
  flows = _flows(rounds, clients, grid, changed.any(axis=0)) if moved else None
  return {'moved': moved, 'of': len(clients), 'flows': flows}


def _flows(
  rounds: np.ndarray, clients: np.ndarray, grid: np.ndarray, changed: np.ndarray
) -> dict[str, Any]:
  """Flows of clients between some rounds, those before and after moves.

  `grid` [C, R] has the cluster of each client, -1 before the first; `changed` [R - 1]
  says after which rounds clients move. Returns `rounds` [S]; `sizes` of clusters there,
  where their blocks begin (`lows`) [S, K]; and `links`, of [place, cluster there,
  cluster next, clients, some names of those that move, begin there, begin next].
  """
  after = np.flatnonzero(changed)
  shown = np.unique([0, *after, *(after + 1), len(rounds) - 1])
  shown = shown[np.unique(np.linspace(0, len(shown) - 1, _ROUNDS).astype(int))]
  columns, count = [grid[:, i] for i in shown], int(grid.max()) + 1
  sizes = np.array([np.bincount(x[x >= 0], minlength=count) for x in columns])
  above = sizes + (sizes > 0) * _GAP * sizes.sum(axis=1).max()
  lows = above.cumsum(axis=1) - above
  links: list[list[Any]] = []
  for place, (a, b) in enumerate(itertools.pairwise(columns)):
    start, end = lows[place].copy(), lows[place + 1].copy()
    for pair in np.unique((a * count + b)[a >= 0]):
      source, target = divmod(int(pair), count)
      who = np.flatnonzero((a == source) & (b == target))
      movers = who[:_NAMES] if source != target else who[:0]
      begins = [round(float(x), 3) for x in (start[source], end[target])]
      names = [printable(name, 60) for name in clients[movers]]
      links.append([place, source, target, len(who), names, *begins])
      start[source] += len(who)
      end[target] += len(who)
  return {
    'rounds': rounds[shown].tolist(), 'sizes': sizes.tolist(),
    'lows': lows.round(3).tolist(), 'links': links,
  }  # fmt: skip


def _sheets(run: ReportedRun, room: int) -> tuple[list[dict[str, Any]] | None, int]:
  """Sheets of a run's clusters as PNG in base 64, and their bytes.

  None in place of the sheets where `room` bytes do not hold them.
  """
  held = run.portrait
  if 'sheet_images' not in held:
    return [], 0
  truth = true_clusters(held['truth'], held.get('truth_names'))
  sheets, used = [], 0
  pictures = laid_out(held['sheet_images'])
  for k, picture in enumerate(pictures):
    who, members = held['sheet_clients'][k], held['assignment'] == k
    if not (who >= 0).any():
      continue
    text = base64.b64encode(_png(picture)).decode()
    used += len(text)
    if used > room:
      return None, 0
    sheets.append(
      {
        'cluster': k,
        'size': int(members.sum()),
        'mix': '' if truth is None else mix(truth, members),
        'names': [printable(held['names'][i], 24) if i >= 0 else '' for i in who],
        'png': text,
      }
    )
  return sheets, used


def _png(picture: np.ndarray) -> bytes:
  """A sheet as PNG, its gray values or colors from the darkest to the lightest."""
  from PIL import Image  # Slow to import.

  if picture.dtype != np.uint8 or picture.ndim == 2:
    values = picture.astype(np.float64)
    least, most = values.min(), values.max()
    picture = np.round(255 * (values - least) / max(most - least, 1e-30))
  image = Image.fromarray(picture.astype(np.uint8))
  if image.width > _WIDTH:
    image.thumbnail((_WIDTH, image.height))
  out = io.BytesIO()
  image.save(out, 'PNG', optimize=True)
  return out.getvalue()
