"""Partitions that deal examples to clients by size or label."""

import dataclasses
import heapq
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.data.expressions import Call
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import UserError, check, warn_once

if TYPE_CHECKING:
  from fesem_jax.data.pool import Pool

Array = np.ndarray
Generator = np.random.Generator
Alpha = Annotated[float, ranges.Range(above=0, most=1e300)]
Sigma = Annotated[float, ranges.Range(0, 100)]  # Larger ones overflow.
Rows = list[Array]  # Row numbers of each client.
# (labels [T] of a split, least rows of a client) -> rows of each client.
Rule = Callable[..., Rows]

_NUM_CLIENTS = 100  # Where the data set has no clients of its own.
_DRAWS = 1000
_FEDPROX_LEAST = 5  # Examples of each of a client's labels.


class Request(NamedTuple):
  rng: Generator
  labels: Array  # [T] of the training examples.
  num_clients: int
  num_classes: int
  need: int = 0  # Rows of each client, on average where sizes differ; 0 deals all.


class Context(NamedTuple):
  seed: int
  split: int  # 0 for training and 1 for test.
  num_clients: int
  num_classes: int
  labels: Array  # Classes that have training examples.
  scale: float  # Models see `x * scale`.

  def rng(self, stream: int, number: int) -> Generator:
    """The random state of a group or client in this split."""
    return prng_streams.host_rng(self.seed, stream, 2 * number + self.split)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Partition:
  """How examples are dealt to clients and changed; subclasses are frozen dataclasses.

  A subclass has `deal` or `rule`. Its `change(x, y, group, context)`, if any, returns
  the changed examples of a group (of a client, if `by_client`).
  """

  layer: ClassVar[int] = 0  # A partition is `within` one of a higher layer.
  by_label: ClassVar[bool] = False  # Needs classes.
  by_cluster: ClassVar[bool] = False  # Needs known clusters.
  by_client: ClassVar[bool] = False
  copies: ClassVar[Any] = 1  # Groups that hold all examples each.
  within: Any = None  # The partition within it, which deals to the clients of a part.

  def __init_subclass__(cls) -> None:
    dataclasses.dataclass(frozen=True)(cls)

  def __post_init__(self) -> None:
    fields = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
    for name in fields:
      if isinstance(value := getattr(self, name), list):
        object.__setattr__(self, name, _frozen(value))
    ranges.check_arguments(type(self), {name: getattr(self, name) for name in fields})
    inner = self.within
    valid = inner is None or (isinstance(inner, Partition) and inner.layer < self.layer)
    check(valid, f'partition: {name_of(type(self))} cannot hold {inner!s:.50}')

  def __str__(self) -> str:
    """The expression that `partitions.parse` reads."""
    fields = dataclasses.fields(self)  # type: ignore[arg-type]
    values = {f: getattr(self, f.name) for f in fields if f.name != 'within'}
    options = {f.name: value for f, value in values.items() if value != f.default}
    text = str(Call(name_of(type(self)), (), options))
    return text if str(self.within) in ('None', 'iid') else f'{text}+{self.within}'

  @property
  def parts(self) -> 'tuple[Partition, ...]':
    """The partition and those within it, the outermost first."""
    return (self,) if self.within is None else (self, *self.within.parts)

  @property
  def num_clients(self) -> int:
    """M where the partition itself determines it; 0 elsewhere."""
    return 0 if self.within is None else self.within.num_clients

  def deal(self, rng: Generator, labels: Array, num_clients: int) -> Rows:
    """The rows of each client, of `labels` [T] (0 where targets are no classes)."""
    request = Request(rng, labels, num_clients, int(labels.max()) + 1)
    return self.rule(request)(labels, 1)

  def rule(self, request: Request) -> Rule:
    """The function that deals the training split, and then the test split alike."""
    rng, _, num_clients, num_classes, _ = request
    shares: list[Array] = []

    def deal(y: Array, least: int) -> Rows:
      if shares:
        return by_shares(rng, y, shares[0], least)
      rows = [np.asarray(r, int) for r in self.deal(rng, y, num_clients)]
      shares.append(shares_of(y, rows, num_classes))
      return rows

    return deal

  def first_draws(self, request: Request) -> tuple[Array, Array]:
    """Shares [L, M] and shards [M, s], which every kind draws, so that rows stay."""
    rng, _, num_clients, num_classes, _ = request
    per_client = getattr(self, 'shards_per_client', 2)
    alpha = getattr(self, 'alpha', 0.5)
    shares = rng.dirichlet(np.full(num_clients, alpha), num_classes)
    return shares, rng.permutation(num_clients * per_client).reshape(num_clients, -1)

  def groups_of(self, num_clients: int) -> Array | None:
    """[M] true group of each client; None without groups."""
    return None if self.within is None else self.within.groups_of(num_clients)

  def splits(
    self, pool: 'Pool', seed: int, num_clients: int, examples: int, last: bool
  ) -> tuple[Sequence[str] | None, Rows, Rows]:
    """Names (None if numbered), training rows and test rows of a pool's clients."""
    count = num_clients or self.num_clients or _NUM_CLIENTS
    fixed = self.num_clients or count
    check(count == fixed, f'num_clients: is {count}, but {self!s:.50} lists {fixed}')
    clusters = any(part.by_cluster for part in self.parts)
    fits = pool.cluster is not None or not clusters
    check(fits, 'partition: cluster needs clusters in the data')
    fits = pool.task == CLASSIFICATION.name or not any(p.by_label for p in self.parts)
    check(fits, f'partition: {self!s:.40} needs classes; not {pool.task}')
    rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
    rows = [np.flatnonzero(mask) for mask in pool.masks]
    has_test = pool.test is not None
    need = examples if has_test else with_test(examples)
    least, equal = (1 if has_test else 2), isinstance(self.parts[-1], Iid)
    requested, dealt = max(need, least) * count, len(rows[0]) * self.copies
    check(requested <= dealt, f'num_clients: need {requested} examples; got {dealt}')
    if need and not (equal or clusters) and self.groups_of(count) is None:
      rows[0] = rows[0][rng.choice(len(rows[0]), need * count, replace=False)]
    labels = [pool.labels[r] for r in rows]
    cluster_args = [(pool.cluster[r],) if clusters else () for r in rows]  # type: ignore[index]
    rule = self.rule(Request(rng, labels[0], count, pool.num_classes, need))
    train = [rows[0][r] for r in rule(labels[0], least, *cluster_args[0])]
    fewest = min(map(len, train))
    enough = fewest >= max(least, need * equal)
    check(enough, f'num_clients: a client has {fewest} examples; lower it')
    train = [r[: need or None] for r in train] if equal else train
    if has_test:
      return None, train, [rows[1][r] for r in rule(labels[1], 0, *cluster_args[1])]
    rng = prng_streams.host_rng(seed, prng_streams.SPLIT)
    return None, *split_each(rng, [np.sort(r) for r in train] if last else train, last)


def name_of(kind: type) -> str:
  """The name of a kind in expressions, in snake case."""
  letters = [f'_{c.lower()}' if c.isupper() else c for c in kind.__name__]
  name = ''.join(letters).lstrip('_')
  return 'cluster' if name == 'in_clusters' else name


def _frozen(values: Any) -> Any:
  return tuple(map(_frozen, values)) if isinstance(values, list | tuple) else values


def with_test(train: int) -> int:
  """Rows of which an 80/20 split leaves `train` for training; 0 for 0."""
  return max(train + 1, round(train / 0.8)) if train else 0


def sizes_of(share: Array, count: int) -> Array:
  """[M] rows of each client, given its share [M] of `count`; they sum to it."""
  ends = np.round(np.cumsum(share)[:-1] * count).astype(int)
  return np.diff(ends, prepend=0, append=count)


def by_counts(rng: Generator, labels: Array, counts: Array) -> Rows:
  """Random rows of each class, as many as `counts` [L, M] says."""
  parts: list[Rows] = [[np.array([], int)] for _ in counts.T]
  for label in np.flatnonzero(counts.any(axis=1)):
    rows = rng.permutation(np.flatnonzero(labels == label))
    ends = np.cumsum(counts[label])
    for i in np.flatnonzero(counts[label]):
      parts[i].append(rows[ends[i] - counts[label, i] : ends[i]])
  return [rng.permutation(np.concatenate(part)) for part in parts]


def by_shares(rng: Generator, labels: Array, shares: Array, least: int) -> Rows:
  """Rows by shares [L, M]; clients below `least` take rows of the largest ones."""
  counts = np.bincount(labels, minlength=len(shares))
  sizes = [sizes_of(s, n * s.any()) for s, n in zip(shares, counts, strict=False)]
  clients = by_counts(rng, labels, np.array(sizes))
  # Largest first, and the first of equally large ones.
  givers = [(-len(rows), i) for i, rows in enumerate(clients) if len(rows) > least]
  heapq.heapify(givers)
  for i in range(len(clients)):
    while len(clients[i]) < least:
      check(givers, f'num_clients: {len(labels)} examples are too few; lower it')
      j = heapq.heappop(givers)[1]
      count = min(least - len(clients[i]), len(clients[j]) - least)
      clients[i] = np.concatenate([clients[i], clients[j][:count]])
      clients[j] = clients[j][count:]
      if len(clients[j]) > least:
        heapq.heappush(givers, (-len(clients[j]), j))
  return clients


def shares_of(labels: Array, rows: Rows, num_classes: int) -> Array:
  """[L, M] shares of clients in the examples of each class."""
  counts = [np.bincount(labels[r], minlength=num_classes) for r in rows]
  by_class = np.stack(counts, axis=1)
  return by_class / np.maximum(1, by_class.sum(axis=1, keepdims=True))


def split_each(rng: Generator, rows: Rows, last: bool = False) -> tuple[Rows, Rows]:
  """80 % of the rows of each client, at least one, and the other or last ones."""
  rows = rows if last else [rng.permutation(r) for r in rows]
  cuts = [max(1, min(round(0.8 * len(r)), len(r) - 1)) for r in rows]
  pairs = [(r[:cut], r[cut:]) for r, cut in zip(rows, cuts, strict=True)]
  return [a for a, _ in pairs], [b for _, b in pairs]


def rows_of(group: Array, num_groups: int) -> Rows:
  """The rows of each group, ascending; `group` [T] is that of each row."""
  sizes = np.bincount(group, minlength=num_groups)
  return np.split(np.argsort(group, kind='stable'), np.cumsum(sizes)[:-1])


class Iid(Partition):
  """Equal random shares of all examples, or `sizes` of the training splits."""

  sizes: Sequence[int] = ()

  def __post_init__(self) -> None:
    super().__post_init__()
    valid = all(isinstance(size, int | np.integer) and size > 0 for size in self.sizes)
    check(valid, 'sizes: must be positive integers')

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
  """Shares of each class from a Dirichlet distribution (Yurochkin et al. 2019).

  Attributes:
    alpha: concentration; smaller is more skewed.
    min_examples: if positive, the draw is NIID-Bench's (Li et al. 2022): a client above
      the mean size gets none of later classes; repeated until all have enough.
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
  """Sizes from Dir(alpha), more skewed for a smaller alpha, and labels at random."""

  alpha: Alpha = 0.5

  def shares(self, request: Request, first: Array) -> Array:
    return first[:1]


class Lognormal(ByShares):
  """Sizes in proportion to exp(sigma z), z ~ N(0, 1) (FedDyn, Acar et al. 2021)."""

  sigma: Sigma = 0.3

  def shares(self, request: Request, first: Array) -> Array:
    return _exp_weights(request.rng, request.num_clients, self.sigma)[None]


class FewLabels(ByShares):
  """The base class of kinds whose clients have few of the labels that occur."""

  by_label = True
  top_up = False
  per_client: ranges.Count = 2
  present_shares: ClassVar[Callable[..., Array]]  # (request, labels [P], counts [P])

  def shares(self, request: Request, first: Array) -> Array:
    present, places = np.unique(request.labels, return_inverse=True)
    enough = self.per_client <= len(present)
    check(enough, f'per_client: is {self.per_client}; there are {len(present)} labels')
    shares = np.zeros((request.num_classes, request.num_clients))
    shares[present] = self.present_shares(request, present, np.bincount(places))
    absent = present[~shares[present].any(axis=1)].tolist()
    if absent:
      warn_once(f'{self!s:.40}: no client has the labels {absent[:9]}; left out')
    return shares


class Labels(FewLabels):
  """`per_client` labels a client, or given ones (NIID-Bench, Li et al. 2022).

  Client i has label i mod L and random others; a label's clients share it equally.
  """

  of: Sequence[Sequence[int]] = ()

  @property
  def num_clients(self) -> int:
    return len(self.of)

  def present_shares(self, request: Request, present: Array, counts: Array) -> Array:
    clients = np.arange(request.num_clients)
    has = np.zeros((len(counts), len(clients)))
    if self.of:
      for i, labels in enumerate(self.of):
        valid = len(labels) and np.isin(labels, present).all()
        check(valid, f'of: client {i} needs labels that have examples')
        has[np.searchsorted(present, labels), i] = 1
    else:
      order = request.rng.random((len(clients), len(counts)))
      order[clients, clients % len(counts)] = -1
      has[np.argsort(order, axis=1)[:, : self.per_client].T, clients] = 1
    return has / np.maximum(1, has.sum(axis=1, keepdims=True))


class PowerLaw(FewLabels):
  """`per_client` labels and sizes of a power law (FedProx's MNIST, Li et al. 2020).

  Client i has labels i, i + 1, ... mod L: 5 examples of each, and of the others a share
  in proportion to exp(sigma z), z ~ N(0, 1).
  """

  sigma: Sigma = 2.0

  def present_shares(self, request: Request, present: Array, counts: Array) -> Array:
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
  """Equal sizes, labels from Dir(alpha p), p the shares of all (Hsu et al. 2019)."""

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
  """[L, M] examples of classes by drawn shares [M, L]; who lacks some draws again."""
  num_clients, num_classes = drawn.shape
  remaining = np.bincount(labels, minlength=num_classes)
  counts = np.zeros(drawn.shape, int)
  missing = np.diff(np.arange(num_clients + 1) * len(labels) // num_clients)
  while missing.any():
    chances = drawn * (remaining > 0)
    # Those whose classes have all run out take what there is.
    chances[chances.sum(axis=1) < 1e-12] = remaining
    new = rng.multinomial(missing, chances / chances.sum(axis=1, keepdims=True))
    for label in np.flatnonzero(new.sum(axis=0) > remaining):
      drawers = rng.permutation(np.repeat(np.arange(num_clients), new[:, label]))
      new[:, label] = np.bincount(drawers[: remaining[label]], minlength=num_clients)
    counts += new
    remaining = remaining - new.sum(axis=0)
    missing = missing - new.sum(axis=1)
  return counts.T


class Shards(Partition):
  """`per_client` shards of examples in the order of labels (McMahan et al. 2017)."""

  by_label = True
  per_client: ranges.Count = 2

  @property
  def shards_per_client(self) -> int:
    return self.per_client

  def rule(self, request: Request) -> Rule:
    _, client_shards = self.first_draws(request)

    def deal(y: Array, least: int) -> Rows:
      shards = np.array_split(np.argsort(y, kind='stable'), client_shards.size)
      return [np.concatenate([shards[s] for s in client]) for client in client_shards]

    return deal


def _exp_weights(rng: Generator, count: int, sigma: float) -> Array:
  """[count] in proportion to exp(sigma z), z ~ N(0, 1); they sum to 1."""
  logs = sigma * rng.normal(size=count)
  weights = np.exp(logs - logs.max())  # The largest may overflow.
  return weights / weights.sum()
