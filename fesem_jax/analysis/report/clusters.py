"""The clusters of a page: sizes over rounds, moves of clients, sheets of images."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.analysis.report.runs import ReportedRun, first_of_each_method
from fesem_jax.run.results.moves import moves, sizes_by_round
from fesem_jax.run.results.pictures import laid_out
from fesem_jax.run.results.truth import mix, true_clusters
from fesem_jax.utils.display import printable

# Bytes of all sheets together, and pixels of the widest one.
_SHEET_BYTES, _WIDTH = 1_000_000, 480


def clusters(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
  """The clusters of the runs that have any.

  Returns for each run its place as `run`, the `rounds` and the `sizes` [R, K] of
  clusters; and, where they are known, `moves_by_round`, a list of [round, clients that
  moved] of the rounds with moves, `moves` and `sheets`.
  """
  entries, room = [], _SHEET_BYTES
  for i in first_of_each_method(runs):
    run = runs[i]
    records = [r for r in run.history if r.get('cluster_sizes')]
    if not records:
      continue
    sizes, places = sizes_by_round(records)
    sheets, used = _sheets(run, room)
    room -= used
    moved = {r['round']: r['moved'] for r in run.history if 'moved' in r}
    by_round = [[number, count] for number, count in moved.items() if count]
    entry = {'moves_by_round': by_round if moved else None, 'sheets': sheets}
    entries.append(sizes | {'run': i, 'moves': moves(run.folder, places)} | entry)
  return entries


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
