"""The true clusters of clients, and their names."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.utils.display import printable


class TrueClusters(NamedTuple):
  """The true clusters of a federation."""

  of_client: np.ndarray  # [M] int true cluster of each client, 0..G-1
  names: list[str]  # [G] what readers are shown


def true_clusters(
  truth: np.ndarray | None,
  names: Sequence[str] | np.ndarray | None = None,
  show: Callable[[str], str] = printable,
) -> TrueClusters | None:
  """Numbers the true clusters of clients from 0, in order, and names them.

  Args:
    truth: [M] true cluster of each client, int or str; None or [0] where none is
      known.
    names: what clusters 0, 1, ... are called where `truth` is int. A cluster without
      a name is called by its number.
    show: makes a name fit to be shown, e.g. `in_figure`.

  Returns:
    None where no true cluster is known.
  """
  if truth is None or not len(truth):
    return None
  truth = np.asarray(truth)
  kinds, of_client = np.unique(truth, return_inverse=True)
  if truth.dtype.kind == 'U':
    return TrueClusters(of_client, [show(str(name)) for name in kinds])
  given = dict(enumerate([] if names is None else names))
  return TrueClusters(
    of_client,
    [show(str(given.get(int(k), f'true cluster {k}'))) for k in kinds],
  )


def mix(truth: TrueClusters, members: np.ndarray) -> str:
  """How many members ([M] bool) are of which true cluster; the largest three."""
  counts = np.bincount(truth.of_client[members], minlength=len(truth.names))
  order = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
  parts = [f'{counts[i]} of {truth.names[i]}' for i in order[:3]]
  if others := order[3:].tolist():
    parts.append(f'{counts[others].sum()} of {len(others)} others')
  return ', '.join(parts)
