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


def labels_of_clients(
  rng: np.random.Generator,
  labels: np.ndarray,
  num_classes: int,
  num_clients: int,
  alpha: float,
) -> np.ndarray:
  """[M, L]: q_i ~ Dir(alpha p), client i's distribution of labels.

  As Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019
  draw it; p are the shares of the classes among all `labels` [T].
  """
  counts = np.bincount(labels, minlength=num_classes)
  occurs = np.flatnonzero(counts)
  drawn = np.zeros((num_clients, num_classes))
  concentration = alpha * counts[occurs] / len(labels)
  drawn[:, occurs] = rng.dirichlet(concentration, num_clients)
  return drawn


def equal_sizes(
  rng: np.random.Generator, labels: np.ndarray, of_clients: np.ndarray
) -> np.ndarray:
  """[L, M]: how many examples of each class clients get, of like sizes in all.

  Clients draw labels from their distributions `of_clients` [M, L], without replacement
  of the examples `labels` [T]; sizes differ by at most one. Those who draw a class that
  runs out are chosen at random, and the others draw again from the classes that are
  left, as Hsu et al. renormalize.
  """
  num_clients, num_classes = of_clients.shape
  remaining = np.bincount(labels, minlength=num_classes)
  wanted = np.diff(np.arange(num_clients + 1) * len(labels) // num_clients)
  counts = np.zeros((num_clients, num_classes), int)
  while wanted.any():
    chances = of_clients * (remaining > 0)
    # Those whose classes have all run out take what is there.
    chances[chances.sum(axis=1) < 1e-12] = remaining
    chances /= chances.sum(axis=1, keepdims=True)
    drawn = rng.multinomial(wanted, chances)
    for label in np.flatnonzero(drawn.sum(axis=0) > remaining):
      drawers = rng.permutation(np.repeat(np.arange(num_clients), drawn[:, label]))
      drawn[:, label] = np.bincount(drawers[: remaining[label]], minlength=num_clients)
    counts += drawn
    remaining = remaining - drawn.sum(axis=0)
    wanted = wanted - drawn.sum(axis=1)
  return counts.T


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
