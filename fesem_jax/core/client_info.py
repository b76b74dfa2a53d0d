"""Names, true clusters and weights of the clients, and names of the classes."""

import collections
import dataclasses

import numpy as np

from fesem_jax.utils.errors import check


@dataclasses.dataclass(frozen=True, eq=False)
class ClientInfo:
  """Names, true clusters and weights of the clients, on the host; never traced.

  Infos of equally many clients are equal, so that their data share compiled programs.
  Raises `UserError` on repeated names, wrong lengths, or invalid weights.
  """

  names: np.ndarray  # [M] distinct strings
  clusters: np.ndarray | None = None  # [M] true clusters, int or strings
  cluster_names: tuple[str, ...] | None = None  # of int clusters, e.g. '90 degrees'
  class_names: tuple[str, ...] | None = None
  weights: np.ndarray | None = None  # [M] in means, for `weighting=by_weight`
  # Means and deviations [F] of standardized columns.
  standardization: tuple[np.ndarray, np.ndarray] | None = None
  in_order: bool = False  # whether clients are tested on their last examples

  def __post_init__(self) -> None:
    for field in ('names', 'clusters', 'weights'):
      if getattr(self, field) is not None:
        values = np.asarray(getattr(self, field))
        object.__setattr__(self, field, values)
        fits = values.shape == (len(self.names),)
        check(fits, f'{field}: has shape {values.shape}; give one for each client')
    counts = collections.Counter(self.names.tolist())
    repeated = [name for name, count in counts.items() if count > 1]
    check(not repeated, f'names: several clients are called {repeated[:3]}')
    if self.weights is not None:
      object.__setattr__(self, 'weights', checked_weights(self.weights, 'weights'))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, ClientInfo) and len(self.names) == len(other.names)

  def __hash__(self) -> int:
    return hash(len(self.names))


def checked_weights(weights: object, where: str) -> np.ndarray:
  """[M] float32; `UserError` unless finite, not negative and one is positive."""
  single = np.asarray(weights).astype(np.float32)
  fits = np.isfinite(single).all() and (single >= 0).all() and single.any()
  check(fits, f'{where}: must be finite and not negative, and one of them positive')
  return single
