"""Shares of clients in the examples of each class, or in all examples.

Shares are [L, M], client i's part of the examples of each class, or [1, M].
"""

import numpy as np

from fesem_jax.data.partitions.rows import sizes_of
from fesem_jax.utils.errors import UserError, argument

_DRAWS = 1000
_FEDPROX_LEAST = 5  # Examples of each of a client's labels.


def equal_labels(
  rng: np.random.Generator, num_classes: int, num_clients: int, per_client: int
) -> np.ndarray:
  """[L, M]: each label's examples are dealt equally among the clients that have it.

  Client i has label i mod L and random others, `per_client` in all and at most L, as in
  NIID-Bench's quantity-based label imbalance (Li et al., "Federated Learning on Non-IID
  Data Silos", 2022). Examples of a label that no client has are not dealt.
  """
  order = rng.random((num_clients, num_classes))
  everyone = np.arange(num_clients)
  order[everyone, everyone % num_classes] = -1
  chosen = np.argsort(order, axis=1)[:, :per_client]
  has = np.zeros((num_classes, num_clients))
  has[chosen.T, everyone] = 1
  return has / np.maximum(1, has.sum(axis=1, keepdims=True))


def capped_dirichlet(
  rng: np.random.Generator,
  labels: np.ndarray,
  num_classes: int,
  num_clients: int,
  alpha: float,
  least: int,
) -> np.ndarray:
  """[L, M]: a Dirichlet draw a class, drawn again until each client has enough.

  As NIID-Bench does (Li et al. 2022): classes are dealt one after another, a client
  with T / M examples or more gets none of later classes, and all is repeated until each
  client has `least` examples. `labels` [T] are those of the training examples, and
  alpha is the concentration. Raises `UserError` if no draw of 1,000 is such.
  """
  counts = np.bincount(labels, minlength=num_classes)
  concentration = np.full(num_clients, alpha)
  for _ in range(_DRAWS if least * num_clients <= len(labels) else 0):
    shares = np.zeros((num_classes, num_clients))
    sizes = np.zeros(num_clients, int)
    for label, count in enumerate(counts):
      share = rng.dirichlet(concentration) * (sizes < len(labels) / num_clients)
      total = share.sum()
      if not total > 0:  # All of it went to clients that have enough.
        break
      shares[label] = share / total
      sizes += sizes_of(shares[label], count)
    else:
      if sizes.min() >= least:
        return shares
  raise UserError(
    f'{argument("dirichlet_min_examples", least)}: no draw with '
    f'{argument("dirichlet_alpha", alpha)} gives each of {num_clients} clients so many '
    f'of {len(labels)} examples; lower it or `num_clients`, or raise `dirichlet_alpha`.'
  )


def lognormal(rng: np.random.Generator, num_clients: int, sigma: float) -> np.ndarray:
  """[1, M]: shares in proportion to exp(sigma z), z standard normal.

  As in FedDyn (Acar et al. 2021), whose sigma is 0.3.
  """
  return _weights(rng, num_clients, sigma)[None]


def power_law(
  rng: np.random.Generator,
  labels: np.ndarray,
  num_classes: int,
  num_clients: int,
  per_client: int,
  sigma: float,
) -> np.ndarray:
  """[L, M]: FedProx's MNIST (Li et al. 2020): few labels, sizes of a power law.

  Client i has labels i, i + 1, ... mod L, `per_client` in all and at most L: 5 examples
  of each, and of the others of a label a share in proportion to exp(sigma z), with
  sigma 2 there. FedProx leaves out what rounding leaves over; here all examples are
  dealt. `labels` [T] are those of the training examples.
  """
  shares = np.zeros((num_classes, num_clients))
  first = np.arange(num_clients) % num_classes
  for label, count in enumerate(np.bincount(labels, minlength=num_classes)):
    has = np.flatnonzero((label - first) % num_classes < per_client)
    if not count or not len(has):
      continue
    least = min(_FEDPROX_LEAST, count // len(has))
    others = count - least * len(has)
    shares[label, has] = (least + others * _weights(rng, len(has), sigma)) / count
  return shares


def _weights(rng: np.random.Generator, count: int, sigma: float) -> np.ndarray:
  logarithms = sigma * rng.normal(size=count)
  weights = np.exp(logarithms - logarithms.max())  # The largest may overflow.
  return weights / weights.sum()
