"""An unknown number of clusters: DBSCAN with a radius computed from the data (FLUX)."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fesem_jax.server.descriptors import FAR, Placing

# Values that differ by a smaller share are equal.
_ROUNDING = 1e-6


def knee(values: np.ndarray) -> int | None:
  """Where increasing values [n] bend the most (Kneedle, sensitivity 1); None: nowhere.

  Satopaa et al., "Finding a Kneedle in a Haystack", ICDCS Workshops 2011, as kneed
  0.8.5 computes it.
  """
  count, span = len(values), np.ptp(values)
  if span <= _ROUNDING * values.max():
    return None
  # Turned by half, the curve is concave and increasing.
  above = (values.max() - values[::-1]) / span - np.linspace(0, 1, count)
  above = above.round(9)  # What is level stays so in float64.
  neighbors = np.pad(above, 1, mode='edge')
  peaks = (above >= neighbors[:-2]) & (above >= neighbors[2:])
  valleys = (above <= neighbors[:-2]) & (above <= neighbors[2:])
  peak, threshold = None, 0.0
  for i in range(count - 1):
    if peaks[i]:
      peak, threshold = i, above[i] - 1 / (count - 1)
    if valleys[i]:
      threshold = 0.0
    if peak is not None and above[i + 1] < threshold:
      return count - 1 - peak
  return None


def clusters(
  points: np.ndarray, ids: np.ndarray, scaling: float = 1.0
) -> tuple[np.ndarray, float]:
  """DBSCAN of points [n, P] with clusters of two at least; others are alone.

  The radius is `scaling` times the knee of the sorted distances to nearest neighbors,
  or the largest. Returns clusters [n] int, numbered by least of the `ids`, and the
  radius.
  """
  from sklearn.cluster import DBSCAN  # Slow to import.
  from sklearn.neighbors import NearestNeighbors

  if len(points) < 2:
    return np.zeros(len(points), int), 0.0
  search = NearestNeighbors(n_neighbors=2).fit(points)
  distances = np.sort(search.kneighbors(points)[0][:, 1])
  bend = knee(distances)
  # The distance of a pair of points is rounded in other ways here and by DBSCAN.
  radius = scaling * float(distances[-1 if bend is None else bend]) * (1 + _ROUNDING)
  # A radius of 0 is refused; equal points are then clusters all the same.
  radius = max(radius, np.finfo(np.float64).tiny)
  labels = DBSCAN(eps=radius, min_samples=2).fit_predict(points)
  is_noise = labels < 0
  labels = np.where(is_noise, len(points) + np.arange(len(points)), labels)
  order = np.argsort(ids, kind='stable')
  _, first, inverse = np.unique(labels[order], return_index=True, return_inverse=True)
  numbered = np.empty(len(points), int)
  numbered[order] = np.argsort(np.argsort(first))[inverse]
  return numbered, radius


class DescriptorClusters(NamedTuple):
  """Clusters of clients by their descriptors."""

  assignment: np.ndarray  # [M] int32 cluster of each client
  # [K, 2, C] mean of the first two groups of each cluster's descriptors.
  centroids: np.ndarray
  least: np.ndarray  # [G] least value of each group of descriptors
  span: np.ndarray  # [G] greatest value less the least one; 1 where that is 0

  def placing(self, num_clusters: int, reach: np.ndarray) -> Placing:
    """The rule that places further clients; clusters that do not exist are far."""
    centroids = np.full((num_clusters, *self.centroids.shape[1:]), FAR, np.float32)
    centroids[: len(self.centroids)] = self.centroids
    least, span = (x[:2].astype(np.float32) for x in (self.least, self.span))
    return Placing(*map(jnp.asarray, (centroids, least, span, reach)))


def by_descriptors(
  values: np.ndarray, counted: np.ndarray, ids: np.ndarray, scaling: float
) -> DescriptorClusters:
  """Clusters the clients that are counted [M] bool, and places the others.

  `values` are descriptors [M, G, C]; each group is scaled to the range 0 to 1. The
  others go to the nearest centroid of the first two groups.
  """
  selected = np.asarray(values, np.float64)[counted]
  least = selected.min(axis=(0, 2))
  span = np.ptp(selected, axis=(0, 2))
  span = np.where(span > 0, span, 1.0)

  def scale(values: np.ndarray) -> np.ndarray:
    return (values - least[:, None]) / span[:, None]

  points = scale(selected)
  labels, _ = clusters(points.reshape(len(points), -1), ids[counted], scaling)
  centroids = np.stack(
    [points[labels == k, :2].mean(axis=0) for k in range(labels.max() + 1)]
  )
  offsets = scale(values)[:, None, :2] - centroids
  assignment = (offsets**2).sum(axis=(2, 3)).argmin(axis=1)
  assignment[counted] = labels
  return DescriptorClusters(assignment.astype(np.int32), centroids, least, span)
