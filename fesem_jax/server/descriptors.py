"""FLUX: moments of clients' features, by class too, and their density clusters."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Model, Params
from fesem_jax.training.by_batches import batch_by_batch
from fesem_jax.utils.errors import check

# Random points whose principal components features are projected on, and how much
# farther they reach than the largest feature; those of the authors' code.
_POINTS, _REACH = 200, 1.02
# In the place of moments of a class with less than two examples, as in their code.
_LACKING = -1.0
# Where clusters that do not exist lie; its square is finite.
FAR = 1e15


def features_of(model: Model) -> Callable[[Params, Any], jax.Array]:
  """(params, x [B, ...]) -> [B, D] inputs of the last dense layer."""

  def features(params: Params, x: Any) -> jax.Array:
    layer_inputs: dict[str, jax.Array] = {}

    def multiply(path: tuple[str, ...], inputs: jax.Array) -> None:
      layer_inputs['/'.join(path)] = inputs

    if model.apply_with is not None:
      model.apply_with(params, x, multiply)
    check(layer_inputs, 'model: flux needs a dense layer')
    last = list(layer_inputs.values())[-1]
    return last.reshape(last.shape[0], -1)

  return features


@functools.cache
def projection(num_features: int, components: int) -> tuple[np.ndarray, np.ndarray]:
  """Principal directions [D, C] of random points in the unit cube, and their mean."""
  points = np.random.default_rng(1).uniform(size=(_POINTS, num_features))
  mean = points.mean(axis=0)
  directions = np.linalg.svd(points - mean, full_matrices=False)[2][:components]
  largest = np.abs(directions).argmax(axis=1)
  directions *= np.sign(directions[np.arange(components), largest])[:, None]
  return directions.T.astype(np.float32), (directions @ mean).astype(np.float32)


class Moments(NamedTuple):
  """Moments of the projected features of S clients."""

  # [S, G, C] float32 with G = 2 (L + 1): the mean of all examples, their deviation, the
  # mean of each class, and the deviation of each class.
  values: jax.Array
  counts: jax.Array  # [S, L + 1] float32 examples of all classes, and of each
  largest: jax.Array  # [S] float32 largest feature
  middle: jax.Array  # [C] float32, see `projection`

  def reach(self, counted: jax.Array) -> jax.Array:
    """[] float32: how far random points reach for some clients [S] bool."""
    return _REACH * jnp.where(counted, self.largest, 0.0).max()

  def descriptors(self, reach: jax.Array) -> jax.Array:
    """[S, G, C]: the moments about the mean of random points that reach so far."""
    has_two = (self.counts > 1).at[:, 0].set(True)
    parts = [has_two[:, :1], has_two[:, :1], has_two[:, 1:], has_two[:, 1:]]
    has_moments = jnp.concatenate(parts, axis=1)
    num_classes = self.counts.shape[1] - 1
    is_mean = np.repeat([1.0, 0.0, 1.0, 0.0], [1, 1, num_classes, num_classes])
    shift = reach * jnp.asarray(is_mean, jnp.float32)[:, None] * self.middle[None]
    return jnp.where(has_moments[:, :, None], self.values - shift[None], _LACKING)


def size_of_features(local: LocalTraining, data: FederatedData) -> tuple[int, int]:
  """D, the features of the last dense layer, and C, what they are projected on."""
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  example = jax.ShapeDtypeStruct((1, *data.example_shape), jnp.float32)
  size = jax.eval_shape(features_of(local.model), params, example).shape[1]
  return size, min(data.num_classes, size, _POINTS - 1)


def moments(
  local: LocalTraining, model: Params, data: FederatedData, cohort: Cohort
) -> Moments:
  """Means and deviations of each client's features by model [1, ...], projected."""
  features, num_classes = features_of(local.model), data.num_classes
  size, count = size_of_features(local, data)
  directions, middle = projection(size, count)
  is_largest = (jnp.arange(num_classes + 2) > num_classes)[None, :, None]

  def batch_moments(models: Params, x: Any, y: Any, weights: jax.Array) -> jax.Array:
    with jax.default_matmul_precision('highest'):
      latent = features(tree.unstack(models, 0), x)
      latent = jnp.where(weights[:, None] > 0, latent, 0.0)
      projected = latent @ directions
      classes = jax.nn.one_hot(y, num_classes) * weights[:, None]
      groups = jnp.concatenate([weights[:, None], classes], axis=1)
      ones = jnp.ones((projected.shape[0], 1))
      sums = groups.T @ jnp.concatenate([ones, projected, projected**2], axis=1)
    largest = jnp.full((1, 2 * count + 1), latent.max())
    return jnp.concatenate([sums, largest])

  def accumulate(step: jax.Array, total: jax.Array, new: jax.Array) -> jax.Array:
    return jnp.where(is_largest, jnp.maximum(total, new), total + new)

  shape = (num_classes + 2, 2 * count + 1)
  client_moments = batch_by_batch(
    batch_moments, local, model, data, cohort, shape, accumulate
  )
  sums, largest = client_moments[:, :-1], client_moments[:, -1, 0]
  counts = sums[:, :, 0]
  means = sums[:, :, 1:] / jnp.maximum(counts, 1.0)[:, :, None]
  mean, square = jnp.split(means, 2, axis=2)
  deviation = jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
  parts = (mean[:, :1], deviation[:, :1], mean[:, 1:], deviation[:, 1:])
  values = jnp.concatenate(parts, axis=1)
  return Moments(values, counts, largest, jnp.asarray(middle))


class Placing(NamedTuple):
  """A rule that places clients by moments of all their examples, without labels."""

  centroids: jax.Array  # [K, 2, C] mean of each cluster; `FAR` where it does not exist
  # [2] float32 least mean and deviation of the clients that were clustered.
  least: jax.Array
  span: jax.Array  # [2] float32 the greatest ones less the least ones
  reach: jax.Array  # [] float32, see `Moments.reach`

  @classmethod
  def in_one_cluster(cls, num_clusters: int, components: int) -> 'Placing':
    """All clients in cluster 0."""
    centroids = jnp.full((num_clusters, 2, components), FAR).at[0].set(0.0)
    return cls(centroids, jnp.zeros(2), jnp.ones(2), jnp.float32(0.0))

  def nearest(self, moments: Moments) -> jax.Array:
    """[S] int32: the cluster of nearest mean."""
    values = moments.descriptors(self.reach)[:, :2] - self.least[None, :, None]
    values = (values / self.span[None, :, None])[:, None]
    distances = jnp.square(values - self.centroids[None]).sum(axis=(2, 3))
    return distances.argmin(axis=1).astype(jnp.int32)


# Values that differ by a smaller share are equal.
_ROUNDING = 1e-6


def knee(values: np.ndarray) -> int | None:
  """Where increasing values [n] bend the most, as of kneed 0.8.5; None: in_one_cluster.

  Kneedle of sensitivity 1: Satopaa et al., ICDCS Workshops 2011.
  """
  count, span = len(values), np.ptp(values)
  if span <= _ROUNDING * values.max():
    return None
  # Turned by half, the curve is concave and increasing.
  curve = (values.max() - values[::-1]) / span - np.linspace(0, 1, count)
  curve = curve.round(9)  # What is level stays so in float64.
  neighbors = np.pad(curve, 1, mode='edge')
  peaks = (curve >= neighbors[:-2]) & (curve >= neighbors[2:])
  valleys = (curve <= neighbors[:-2]) & (curve <= neighbors[2:])
  peak, threshold = None, 0.0
  for i in range(count - 1):
    if peaks[i]:
      peak, threshold = i, curve[i] - 1 / (count - 1)
    if valleys[i]:
      threshold = 0.0
    if peak is not None and curve[i + 1] < threshold:
      return count - 1 - peak
  return None


def dbscan(
  points: np.ndarray, ids: np.ndarray, scaling: float = 1.0
) -> tuple[np.ndarray, float]:
  """[n] int DBSCAN clusters of two or more points [n, P], or one, and the radius.

  The radius is `scaling` times the knee of the sorted distances to nearest neighbors,
  or the largest. Clusters are numbered by least of the `ids`.
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


def by_descriptors(
  values: np.ndarray,
  counted: np.ndarray,
  ids: np.ndarray,
  scaling: float,
  reach: np.ndarray,
  num_clusters: int,
) -> tuple[np.ndarray, Placing]:
  """[M] int32 clusters of clients by descriptors [M, G, C], and the rule for others.

  Groups are scaled to the range 0 to 1. Clients that are not counted [M] bool go to the
  nearest centroid of the first two groups.
  """
  selected = np.asarray(values, np.float64)[counted]
  least = selected.min(axis=(0, 2))
  span = np.ptp(selected, axis=(0, 2))
  span = np.where(span > 0, span, 1.0)

  def scale(values: np.ndarray) -> np.ndarray:
    return (values - least[:, None]) / span[:, None]

  points = scale(selected)
  labels, _ = dbscan(points.reshape(len(points), -1), ids[counted], scaling)
  means = np.stack(
    [points[labels == k, :2].mean(axis=0) for k in range(labels.max() + 1)]
  )
  offsets = scale(values)[:, None, :2] - means
  assignment = (offsets**2).sum(axis=(2, 3)).argmin(axis=1).astype(np.int32)
  assignment[counted] = labels
  centroids = np.full((num_clusters, *means.shape[1:]), FAR, np.float32)
  centroids[: len(means)] = means
  scales = (x[:2].astype(np.float32) for x in (least, span))
  return assignment, Placing(*map(jnp.asarray, (centroids, *scales, reach)))
