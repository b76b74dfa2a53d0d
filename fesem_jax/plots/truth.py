"""The true clusters of clients, as figures call them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.utils.display import in_figure


class TrueClusters(NamedTuple):
  """The true clusters of a federation.

  Attributes:
    of_client: [M] int true cluster of each client, 0..G-1.
    names: [G] what figures call them.
  """

  of_client: np.ndarray
  names: list[str]


def true_clusters(
  truth: np.ndarray, names: Sequence[str] | np.ndarray | None = None
) -> TrueClusters | None:
  """Numbers the true clusters of clients from 0, in order, and names them.

  Args:
    truth: [M] true cluster of each client, int or str; or [0] where none is known.
    names: what clusters 0, 1, ... are called where `truth` is int. A cluster without
      a name is called by its number.

  Returns:
    None where no true cluster is known.
  """
  truth = np.asarray(truth)
  if not len(truth):
    return None
  found, of_client = np.unique(truth, return_inverse=True)
  if truth.dtype.kind == 'U':
    return TrueClusters(of_client, [in_figure(name) for name in found])
  given = dict(enumerate([] if names is None else names))
  return TrueClusters(
    of_client,
    [in_figure(given.get(int(k), f'true cluster {k}')) for k in found],
  )
