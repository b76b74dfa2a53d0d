"""Names and true clusters of the clients, and names of the classes."""

import dataclasses

import numpy as np

from fesem_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class ClientInfo:
  """Names and true clusters of the clients, on the host; never traced.

  Two objects with equal numbers of clients are equal, so that data that differ in
  content only share one compiled program.

  Attributes:
    names: [M] strings, e.g. writer ids.
    clusters: [M] true cluster of each client, int or, if clusters have names, strings;
      None if unknown.
    cluster_names: names of clusters 0, 1, ... if `clusters` are int, e.g. '90 degrees';
      None if they have no names. Figures show them.
    class_names: names of classes 0, 1, ..., which figures show; None if unknown.

  Raises:
    UserError: unless `names` and `clusters` have one value for each client.
  """

  names: np.ndarray
  clusters: np.ndarray | None = None
  cluster_names: tuple[str, ...] | None = None
  class_names: tuple[str, ...] | None = None

  def __post_init__(self) -> None:
    for field in ('names', 'clusters'):
      if (given := getattr(self, field)) is not None:
        values = np.asarray(given)
        object.__setattr__(self, field, values)
        if values.shape != self.names.shape or values.ndim != 1:
          raise UserError(
            f'`ClientInfo`: {field} has shape {values.shape}; give each of the '
            f'{self.names.size} clients in `names` one value.'
          )

  def __eq__(self, other: object) -> bool:
    return isinstance(other, ClientInfo) and len(self.names) == len(other.names)

  def __hash__(self) -> int:
    return hash(len(self.names))
