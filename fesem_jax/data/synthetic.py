"""Synthetic federations, some with planted clusters."""

from typing import Annotated

import numpy as np

from fesem_jax.data.reading import Arrays, Request, join_clients
from fesem_jax.tasks import REGRESSION
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Range, checked

_DIMENSION, _CLASSES = 60, 10  # As in FedProx's and LEAF's synthetic data.
_LINEAR_DIMENSION = 1000  # As in IFCA's.

Deviation = Annotated[float, Range(0, 10**6)]  # Features of larger ones overflow.


def _sizes(request: Request) -> np.ndarray:
  """[M] examples of each client, log-normal as in FedProx unless requested."""
  if request.examples:
    return np.full(request.num_clients, request.examples)
  return request.rng.lognormal(4, 2, request.num_clients).astype(int) + 50


def _groups(request: Request, groups: int) -> np.ndarray:
  """[M] group of each client: 0, 1, ..., k-1, 0, 1, ..."""
  check(request.num_clients >= groups, f'groups: {groups} need as many clients')
  return np.arange(request.num_clients) % groups


def _pool(
  clients: list[tuple[np.ndarray, np.ndarray]], groups: np.ndarray | None = None
) -> Arrays:
  width = len(str(len(clients) - 1))
  arrays = join_clients({f'client{i:0{width}d}': c for i, c in enumerate(clients)})
  if groups is not None:
    arrays['cluster'] = np.repeat(groups, [len(y) for _, y in clients])
  return arrays


@checked
def synthetic(
  request: Request, alpha: Deviation = 1.0, beta: Deviation = 1.0
) -> Arrays:
  """Synthetic(alpha, beta) of Li et al. (FedProx), Section 5.1.

  Client k: y = argmax(W x + b), W and b ~ N(u_k, 1), u_k ~ N(0, alpha); x ~ N(v_k,
  diag(j^-1.2)), v_k ~ N(B_k, 1), B_k ~ N(0, beta). As in its authors' code, alpha and
  beta are standard deviations.
  """
  rng, deviation = request.rng, np.arange(1, _DIMENSION + 1) ** -0.6
  clients = []
  for size in _sizes(request):
    center = rng.normal(0, alpha)
    w = rng.normal(center, 1, (_DIMENSION, _CLASSES))
    b = rng.normal(center, 1, _CLASSES)
    mean = rng.normal(rng.normal(0, beta), 1, _DIMENSION)
    x = rng.normal(mean, deviation, (size, _DIMENSION))
    clients.append((x, (x @ w + b).argmax(axis=1)))
  return _pool(clients) | {'num_classes': _CLASSES}


@checked
def synthetic_linear(
  request: Request, groups: Count = 4, noise: Deviation = 0.0
) -> Arrays:
  """The planted linear models of Ghosh et al. (IFCA), Section 6.1.

  x ~ N(0, I) of 1000 features; group k has a model t_k of fair coins in {0, 1}. The
  target is <x, t_k> + noise, as in IFCA's regression; for classification, the label is
  its sign. `noise` is a standard deviation. Clients have 100 examples by default.
  """
  rng, group_ids = request.rng, _groups(request, groups)
  regression = request.task == REGRESSION.name
  models = rng.integers(0, 2, (groups, _LINEAR_DIMENSION))
  clients = []
  for group in group_ids:
    x = rng.normal(size=(request.examples or 100, _LINEAR_DIMENSION))
    target = x @ models[group] + rng.normal(0, noise, len(x))
    clients.append((x, target if regression else target > 0))
  return _pool(clients, group_ids) | {'num_classes': 1 if regression else 2}


@checked
def synthetic_mixture(
  request: Request, groups: Count = 4, noise: Deviation = 0.0
) -> Arrays:
  """Features of a Gaussian mixture, labeled by a logistic model of each group.

  x ~ N(m_c, I), c uniform over 10 components that all clients share; group k labels
  with argmax(W_k x + noise). Only the labels tell the groups apart. `noise` is the
  standard deviation of the logits' noise.
  """
  rng, group_ids = request.rng, _groups(request, groups)
  means = rng.normal(size=(_CLASSES, _DIMENSION))
  models = rng.normal(size=(groups, _DIMENSION, _CLASSES))
  clients = []
  for group, size in zip(group_ids, _sizes(request), strict=True):
    component = rng.integers(0, _CLASSES, size)
    x = means[component] + rng.normal(size=(size, _DIMENSION))
    logits = x @ models[group] + rng.normal(0, noise, (size, _CLASSES))
    clients.append((x, logits.argmax(axis=1)))
  return _pool(clients, group_ids) | {'num_classes': _CLASSES}
