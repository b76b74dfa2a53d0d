"""Synthetic federations, some with planted clusters."""

import numpy as np

from fesem_jax.data.pool import Pool
from fesem_jax.tasks import REGRESSION

_DIMENSION, _CLASSES = 60, 10  # As in FedProx's and LEAF's synthetic data.
_LINEAR_DIMENSION = 1000  # As in IFCA's.


def sizes(
  rng: np.random.Generator, num_clients: int, examples: int, width: int = _DIMENSION
) -> np.ndarray:
  """[M] examples of each client: `examples`, or log-normal as in FedProx.

  Raises `UserError` if so many examples of `width` features are too many.
  """
  if examples:
    return np.full(num_clients, examples)
  return rng.lognormal(4, 2, num_clients).astype(int) + 50


def pool(
  xs: list[np.ndarray], ys: list[np.ndarray], classes: int, groups: np.ndarray | None
) -> Pool:
  """Clients of features and labels each, in groups if there are any."""
  width = len(str(len(xs) - 1))
  return Pool(
    np.concatenate(xs).astype(np.float32),
    np.concatenate(ys).astype(np.int32),
    classes,
    scale=1.0,
    client=np.repeat(np.arange(len(xs)), [len(y) for y in ys]),
    names=np.array([f'client{i:0{width}d}' for i in range(len(xs))]),
    clusters=groups,
  )


def alpha_beta(
  rng: np.random.Generator, num_clients: int, examples: int, alpha: float, beta: float
) -> Pool:
  """Synthetic(alpha, beta) of Li et al., "Federated Optimization in Heterogeneous
  Networks" (FedProx), Section 5.1.

  Client k: y = argmax(W x + b), W and b ~ N(u_k, 1), u_k ~ N(0, alpha);
  x ~ N(v_k, diag(j^-1.2)), v_k ~ N(B_k, 1), B_k ~ N(0, beta). As in its authors' code,
  alpha and beta are standard deviations: of clients' models, and of their features.
  Each client has `examples` examples; 0 draws 50 + lognormal(4, 2).
  """
  deviation = np.arange(1, _DIMENSION + 1) ** -0.6
  xs, ys = [], []
  for size in sizes(rng, num_clients, examples):
    center = rng.normal(0, alpha)
    w = rng.normal(center, 1, (_DIMENSION, _CLASSES))
    b = rng.normal(center, 1, _CLASSES)
    mean = rng.normal(rng.normal(0, beta), 1, _DIMENSION)
    x = rng.normal(mean, deviation, (size, _DIMENSION))
    xs.append(x)
    ys.append((x @ w + b).argmax(axis=1))
  return pool(xs, ys, _CLASSES, None)


def linear_clusters(
  rng: np.random.Generator,
  num_clients: int,
  examples: int,
  groups: np.ndarray,
  noise: float,
  task: str = '',
) -> Pool:
  """The planted linear models of Ghosh et al. (IFCA, Section 6.1).

  x ~ N(0, I) of 1000 features; group k has a model t_k of fair coins in {0, 1}. The
  target is <x, t_k> + noise, as in IFCA's regression; for classification, the label is
  its sign.

  Args:
    rng: random state.
    num_clients: M.
    examples: of each client; 0 takes 100.
    groups: [M] group of each client.
    noise: standard deviation.
    task: 'regression', or else classification.
  """
  regression = task == REGRESSION.name
  models = rng.integers(0, 2, (groups.max() + 1, _LINEAR_DIMENSION))
  xs, ys = [], []
  for group in groups:
    x = rng.normal(size=(examples or 100, _LINEAR_DIMENSION))
    target = x @ models[group] + rng.normal(0, noise, len(x))
    xs.append(x)
    ys.append(target[:, None] if regression else target > 0)
  if not regression:
    return pool(xs, ys, 2, groups)
  y = np.concatenate(ys).astype(np.float32)
  return pool(xs, ys, 1, groups)._replace(y=y, task=task)


def mixture(
  rng: np.random.Generator,
  num_clients: int,
  examples: int,
  groups: np.ndarray,
  noise: float,
) -> Pool:
  """Features of a Gaussian mixture, labeled by a logistic model of each group.

  x ~ N(m_c, I), c uniform over 10 components that all clients share; group k
  labels with argmax(W_k x + noise). Only the labels tell the groups apart.

  Args:
    rng: random state.
    num_clients: M.
    examples: of each client; 0 draws 50 + lognormal(4, 2).
    groups: [M] group of each client.
    noise: standard deviation of the logits' noise.
  """
  means = rng.normal(size=(_CLASSES, _DIMENSION))
  models = rng.normal(size=(groups.max() + 1, _DIMENSION, _CLASSES))
  xs, ys = [], []
  for group, size in zip(groups, sizes(rng, num_clients, examples), strict=True):
    component = rng.integers(0, _CLASSES, size)
    x = means[component] + rng.normal(size=(size, _DIMENSION))
    logits = x @ models[group] + rng.normal(0, noise, (size, _CLASSES))
    xs.append(x)
    ys.append(logits.argmax(axis=1))
  return pool(xs, ys, _CLASSES, groups)
