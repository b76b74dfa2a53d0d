"""Tests whether groups of clients can be separated, before training.

  python docs/recipes/separation.py --num_clients=100 --num_clusters=2,3,4,5,6

Each client's training examples are split into two halves. The gradients of a half at
random models are its point. K-means clusters the points of one half, and those of the
other half, which it has not seen, measure the clusters. The manual's page regret.md
defines the columns.
"""

import argparse

import fesem_jax as fj

fj.setup_devices()
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

MODELS = 5  # Random models at which clients are compared.
CLOUDS = 19  # Clouds without clusters, for p.
MATCHINGS = 999  # Random matchings of halves, for the test whether clients differ.


def halves(train, rng):
  """Two lists of (x, y), a half of each client with two examples, and these clients."""
  clients = np.flatnonzero(train.sizes() > 1)
  first, second = [], []
  for i in clients:
    x, y = train.client(i)
    order, half = rng.permutation(len(y)), len(y) // 2
    for part, rows in ((first, order[:half]), (second, order[half : 2 * half])):
      part.append((x[rows] * np.float32(train.scale), y[rows]))
  return first, second, clients


def gradients(model, examples):
  """[C, D] gradients of each (x, y) at `MODELS` random models."""
  most = max(len(y) for _, y in examples)

  @jax.jit
  def gradient(key, x, y, weights):
    def loss(params):
      return weights @ model.loss(model.apply(params, x), y)

    return ravel_pytree(jax.grad(loss)(model.init(key)))[0]

  points = []
  for x, y in examples:
    rows = np.arange(most) % len(y)  # One shape for all: the rest has weight 0.
    weights = (np.arange(most) < len(y)) / np.float32(len(y))
    args = x[rows], y[rows], weights
    keys = map(jax.random.key, range(MODELS))
    points.append(np.concatenate([gradient(key, *args) for key in keys]))
  return np.array(points, np.float64)


def clustered(points, k):
  """[C] cluster of each point by k-means."""
  return KMeans(k, n_init=20, random_state=0).fit_predict(points)


def mean_squares(points, labels):
  """Mean squares between and within clusters, and the mean clients of a cluster."""
  _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
  count, k = len(points), len(sizes)
  centers = np.array([points[labels == j].mean(axis=0) for j in range(k)])
  between = sizes @ np.square(centers - points.mean(axis=0)).sum(axis=1) / (k - 1)
  within = np.square(points - centers[labels]).sum() / (count - k)
  return between, within, (count - np.square(sizes).sum() / count) / (k - 1)


def crossed(first, second, k):
  """`mean_squares` of either half in clusters of the other, and both clusterings."""
  labels, others = clustered(first, k), clustered(second, k)
  both = mean_squares(second, labels), mean_squares(first, others)
  return np.mean(both, axis=0), labels, others


def cloud(points, rng):
  """[C, D] points of the same mean and covariance without clusters (rotation test)."""
  count, mean = len(points), points.mean(axis=0)
  basis = np.linalg.qr(np.column_stack([np.ones(count), np.eye(count)[:, 1:]]))[0]
  q, r = np.linalg.qr(rng.normal(size=(count - 1, count - 1)))
  turned = (q * np.sign(np.diagonal(r))) @ (basis[:, 1:].T @ points)
  return mean + basis[:, 1:] @ turned


def p_differ(first, second, rng):
  """Share of matchings of halves that agree as much as the halves of one client."""
  products = (first - first.mean(axis=0)) @ (second - second.mean(axis=0)).T
  rows = np.arange(len(first))
  sums = [products[rows, rng.permutation(rows)].sum() for _ in range(MATCHINGS)]
  return (1 + np.sum(sums >= np.trace(products))) / (1 + MATCHINGS)


def main():
  """Prints a line for each K."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--dataset', default='digits')
  parser.add_argument('--partition', default='rotated')
  parser.add_argument('--num_clients', type=int, default=100)
  parser.add_argument('--num_clusters', default='2,3,4,5,6')
  options = parser.parse_args()
  rng = np.random.default_rng(0)
  train, _ = fj.data.load(
    options.dataset, partition=options.partition, num_clients=options.num_clients
  )
  model = fj.models.build('mlp', train.example_shape, train.num_classes, hidden=(64,))
  *examples, clients = halves(train, rng)
  points = np.concatenate([gradients(model, part) for part in examples])
  # Coordinates in the span of the points, which are fewer than parameters.
  u, s, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
  first, second = np.split(u * s, 2)
  noise = np.square(first - second).sum(axis=1).mean() / 2
  print(f'p = {p_differ(first, second, rng):.3f} that clients do not differ')
  pairs = np.hstack([first, second])  # A client's halves turn together.
  clouds = [np.hsplit(cloud(pairs, rng), 2) for _ in range(CLOUDS)]
  print('K  ratio  without clusters  p  explained  agreement  ARI  separated')
  for k in map(int, options.num_clusters.split(',')):
    (between, within, size), labels, others = crossed(first, second, k)
    ratio = between / within
    of_clouds = [b / w for (b, w, _), *_ in (crossed(*each, k) for each in clouds)]
    p = (1 + np.sum(of_clouds >= ratio)) / (1 + CLOUDS)
    apart = max(0.0, (between - within) / size)
    inside = max(0.0, within - noise)
    explained = apart / (apart + inside) if apart else 0.0
    agreement = adjusted_rand_score(labels, others)
    truth, ari = train.info.clusters, np.nan
    if truth is not None:
      ari = adjusted_rand_score(np.asarray(truth)[clients], labels)
    separated = 'yes' if p <= 0.05 and agreement >= 0.8 else 'no'
    figures = ratio, np.mean(of_clouds), p, explained, agreement, ari
    print(k, *(f'{x:.2f}' for x in figures), separated, sep='  ')


if __name__ == '__main__':
  main()
