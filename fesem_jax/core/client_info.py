"""Names, true clusters and weights of the clients, and names of the classes."""

import collections
import dataclasses

import numpy as np

from fesem_jax.utils.errors import check


@dataclasses.dataclass(frozen=True, eq=False)
class ClientInfo:
  """Names, true clusters and weights of the clients, on the host; never traced.

  Two objects with equal numbers of clients are equal, so that data that differ in
  content only share one compiled program.

  Attributes:
    names: [M] strings, e.g. writer ids.
    clusters: [M] true cluster of each client, int or, if clusters have names, strings;
      None if unknown.
    cluster_names: names of clusters 0, 1, ... if `clusters` are int, e.g. '90 degrees';
      None if they have no names. Figures show them.
    class_names: names of classes 0, 1, ..., which figures show; None if unknown.
    weights: [M] weight of each client in means, for `weighting=by_weight`; None if they
      have none. They are not negative, and one is positive.
    standardization: means and standard deviations [F] of the columns that were
      brought to 0 and 1 when they were loaded; None if they were not.
    in_order: whether clients are tested on their last examples, so that their examples
      are in the order of the data.

  Raises:
    UserError: unless `names`, `clusters` and `weights` have one value for each client
      and names are distinct, or if these are no weights.
  """

  names: np.ndarray
  clusters: np.ndarray | None = None
  cluster_names: tuple[str, ...] | None = None
  class_names: tuple[str, ...] | None = None
  weights: np.ndarray | None = None
  standardization: tuple[np.ndarray, np.ndarray] | None = None
  in_order: bool = False

  def __post_init__(self) -> None:
    for field in ('names', 'clusters', 'weights'):
      if (given := getattr(self, field)) is not None:
        values = np.asarray(given)
        object.__setattr__(self, field, values)
        fits = values.ndim == 1 and values.shape == self.names.shape
        check(fits, f'{field}: has shape {values.shape}; names have {self.names.shape}')
    # As many names as clients: a name in results or weights is that of one client.
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
  """[M] float32 weights of clients.

  Raises `UserError`, which calls them `where`, unless they are finite and not negative,
  and one is positive.
  """
  single = np.asarray(weights).astype(np.float32)
  fits = np.isfinite(single).all() and (single >= 0).all() and single.any()
  check(fits, f'{where}: must be finite and not negative, and one of them positive')
  return single
