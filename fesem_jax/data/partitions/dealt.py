"""Partitions that deal examples to clients by size or label."""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import numpy as np

from fesem_jax.data.partitions.partition import (
  Array,
  Generator,
  Partition,
  Request,
  Rows,
  Rule,
  by_counts,
  by_shares,
  sizes_of,
  with_test,
)
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.notices import warn_once

Alpha = Annotated[float, ranges.Range(above=0, most=1e300)]
Sigma = Annotated[float, ranges.Range(0, 100)]  # Larger ones overflow.

_DRAWS = 1000
_FEDPROX_LEAST = 5  # Examples of each of a client's labels.


class Iid(Partition):
  """Equal shares of all examples, at random.

  Attributes:
    sizes: training examples of each client instead; others are left out.
  """

  sizes: Sequence[int] = ()

  def __post_init__(self) -> None:
    super().__post_init__()
    right = all(isinstance(size, int | np.integer) and size > 0 for size in self.sizes)
    check(right, 'sizes: must be positive integers')

  @property
  def num_clients(self) -> int:
    return len(self.sizes)

  def rule(self, request: Request) -> Rule:
    self.first_draws(request)
    rng, sizes = request.rng, np.array(self.sizes, int)

    def deal(y: Array, least: int) -> Rows:
      rows = rng.permutation(len(y))
      if not len(sizes):
        return np.array_split(rows, request.num_clients)
      if least == 0:  # The test split, which is dealt alike.
        return np.split(rows, np.cumsum(sizes_of(sizes / sizes.sum(), len(y)))[:-1])
      ends = np.cumsum(sizes if least == 1 else [with_test(size) for size in sizes])
      check(ends[-1] <= len(y), f'sizes: need {ends[-1]} examples; there are {len(y)}')
      return np.split(rows, ends)[:-1]

    return deal


class ByShares(Partition):
  """The base class of kinds with shares of clients in each or in all classes."""

  top_up: ClassVar[bool] = True  # Small clients take examples of others.

  def shares(self, request: Request, first: Array) -> Array:
    """Shares [L, M] or [1, M]; `first` [L, M] are those of the first draws."""
    return first

  def rule(self, request: Request) -> Rule:
    first, _ = self.first_draws(request)
    shares = self.shares(request, first)
    by_class, top_up = len(shares) == request.num_classes, int(self.top_up)

    def deal(y: Array, least: int) -> Rows:
      return by_shares(request.rng, y * by_class, shares, least * top_up)

    return deal


class Dirichlet(ByShares):
  """Each class by shares from a Dirichlet distribution (Yurochkin et al. 2019).

  Attributes:
    alpha: concentration; smaller is more skewed.
    min_examples: if positive, the draw is NIID-Bench's (Li et al. 2022): a client above
      the mean size gets no more of later classes, and the draw is repeated until each
      client has so many examples, training (and test, if these are split off).
  """

  by_label = True
  alpha: Alpha = 0.5
  min_examples: ranges.Index = 0

  def shares(self, request: Request, first: Array) -> Array:
    if not self.min_examples:
      return first
    rng, labels, num_clients, num_classes, _ = request
    counts, mean = np.bincount(labels, minlength=num_classes), len(labels) / num_clients
    for _ in range(_DRAWS if self.min_examples <= mean else 0):
      shares, sizes = np.zeros((num_classes, num_clients)), np.zeros(num_clients, int)
      for label, count in enumerate(counts):
        share = rng.dirichlet(np.full(num_clients, self.alpha)) * (sizes < mean)
        if not share.sum() > 0:  # All of it went to clients that have enough.
          break
        shares[label] = share / share.sum()
        sizes += sizes_of(shares[label], count)
      else:
        if sizes.min() >= self.min_examples:
          return shares
    raise UserError(f'min_examples: no draw gives {num_clients} clients so many; lower')


class Unequal(ByShares):
  """Sizes from a Dirichlet distribution, and labels at random.

  Attributes:
    alpha: concentration; smaller is more skewed.
  """

  alpha: Alpha = 0.5

  def shares(self, request: Request, first: Array) -> Array:
    return first[:1]


class Lognormal(ByShares):
  """Sizes in proportion to exp(sigma z), z ~ N(0, 1) (FedDyn, Acar et al. 2021).

  Attributes:
    sigma: deviation of the logarithm of sizes.
  """

  sigma: Sigma = 0.3

  def shares(self, request: Request, first: Array) -> Array:
    return _exp_weights(request.rng, request.num_clients, self.sigma)[None]


class FewLabels(ByShares):
  """The base class of kinds whose clients have few of the labels that occur."""

  by_label = True
  top_up = False
  per_client: ranges.Count = 2
  of_present: ClassVar[Callable[..., Array]]  # (request, labels [P], counts [P])

  def shares(self, request: Request, first: Array) -> Array:
    present, places = np.unique(request.labels, return_inverse=True)
    enough = self.per_client <= len(present)
    check(enough, f'per_client: is {self.per_client}; there are {len(present)} labels')
    shares = np.zeros((request.num_classes, request.num_clients))
    shares[present] = self.of_present(request, present, np.bincount(places))
    absent = present[~shares[present].any(axis=1)].tolist()
    if absent:
      warn_once(f'{self!s:.40}: no client has the labels {absent[:9]}; left out')
    return shares


class Labels(FewLabels):
  """`per_client` labels for each client (NIID-Bench, Li et al. 2022).

  Client i has label i mod L and random others; a label's examples are dealt equally
  among the clients that have it.

  Attributes:
    per_client: labels of each client.
    of: the labels of each client instead.
  """

  of: Sequence[Sequence[int]] = ()

  @property
  def num_clients(self) -> int:
    return len(self.of)

  def of_present(self, request: Request, present: Array, counts: Array) -> Array:
    clients = np.arange(request.num_clients)
    has = np.zeros((len(counts), len(clients)))
    if self.of:
      for i, labels in enumerate(self.of):
        right = len(labels) and np.isin(labels, present).all()
        check(right, f'of: client {i} needs labels that have examples')
        has[np.searchsorted(present, labels), i] = 1
    else:
      order = request.rng.random((len(clients), len(counts)))
      order[clients, clients % len(counts)] = -1
      has[np.argsort(order, axis=1)[:, : self.per_client].T, clients] = 1
    return has / np.maximum(1, has.sum(axis=1, keepdims=True))


class PowerLaw(FewLabels):
  """`per_client` labels and sizes of a power law (FedProx's MNIST, Li et al. 2020).

  Client i has labels i, i + 1, ... mod L: 5 examples of each, and of the others of a
  label a share. FedProx leaves out what rounding leaves over; here all are dealt.

  Attributes:
    per_client: labels of each client.
    sigma: shares are in proportion to exp(sigma z), z ~ N(0, 1).
  """

  sigma: Sigma = 2.0

  def of_present(self, request: Request, present: Array, counts: Array) -> Array:
    shares = np.zeros((len(counts), request.num_clients))
    first = np.arange(request.num_clients) % len(counts)
    for label, count in enumerate(counts):
      has = np.flatnonzero((label - first) % len(counts) < self.per_client)
      if len(has):
        least = min(_FEDPROX_LEAST, count // len(has))
        weights = _exp_weights(request.rng, len(has), self.sigma)
        shares[label, has] = (least + (count - least * len(has)) * weights) / count
    return shares


class DirichletLabels(Partition):
  """Equal sizes, labels drawn from Dir(alpha p) of each client (Hsu et al. 2019).

  p are the shares of the classes.

  Attributes:
    alpha: concentration; smaller is more skewed.
  """

  by_label = True
  alpha: Alpha = 0.5

  def rule(self, request: Request) -> Rule:
    self.first_draws(request)
    rng, labels, num_clients, num_classes, _ = request
    counts = np.bincount(labels, minlength=num_classes)
    present, drawn = np.flatnonzero(counts), np.zeros((num_clients, num_classes))
    concentration = self.alpha * counts[present] / len(labels)
    drawn[:, present] = rng.dirichlet(concentration, num_clients)
    return lambda y, least: by_counts(rng, y, _equal_sizes(rng, y, drawn))


def _equal_sizes(rng: Generator, labels: Array, drawn: Array) -> Array:
  """[L, M] examples of each class, given clients' distributions `drawn` [M, L].

  Clients that draw a class that runs out are chosen at random; the others draw again.
  """
  num_clients, num_classes = drawn.shape
  left, counts = np.bincount(labels, minlength=num_classes), np.zeros(drawn.shape, int)
  missing = np.diff(np.arange(num_clients + 1) * len(labels) // num_clients)
  while missing.any():
    chances = drawn * (left > 0)
    # Those whose classes have all run out take what there is.
    chances[chances.sum(axis=1) < 1e-12] = left
    new = rng.multinomial(missing, chances / chances.sum(axis=1, keepdims=True))
    for label in np.flatnonzero(new.sum(axis=0) > left):
      drawers = rng.permutation(np.repeat(np.arange(num_clients), new[:, label]))
      new[:, label] = np.bincount(drawers[: left[label]], minlength=num_clients)
    counts += new
    left = left - new.sum(axis=0)
    missing = missing - new.sum(axis=1)
  return counts.T


class Shards(Partition):
  """Shards of the examples in the order of their labels (FedAvg, McMahan et al. 2017).

  Attributes:
    per_client: shards of each client.
  """

  by_label = True
  per_client: ranges.Count = 2

  @property
  def shards_per_client(self) -> int:
    return self.per_client

  def rule(self, request: Request) -> Rule:
    _, of_clients = self.first_draws(request)

    def deal(y: Array, least: int) -> Rows:
      shards = np.array_split(np.argsort(y, kind='stable'), of_clients.size)
      return [np.concatenate([shards[s] for s in client]) for client in of_clients]

    return deal


def _exp_weights(rng: Generator, count: int, sigma: float) -> Array:
  """[count] in proportion to exp(sigma z), z ~ N(0, 1); they sum to 1."""
  logs = sigma * rng.normal(size=count)
  weights = np.exp(logs - logs.max())  # The largest may overflow.
  return weights / weights.sum()
