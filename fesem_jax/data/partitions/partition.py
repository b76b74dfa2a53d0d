"""The base class of partitions, and how rows are dealt by counts and shares."""

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, dataclass_transform

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check
from fesem_jax.utils.expressions import Call

if TYPE_CHECKING:
  from fesem_jax.data.pool import Pool

Array = np.ndarray
Generator = np.random.Generator
Rows = list[Array]  # Row numbers of each client.
# (labels [T] of a split, least rows of a client) -> rows of each client.
Rule = Callable[..., Rows]

DEFAULT_NUM_CLIENTS = 100  # Where the data set has no clients of its own.


class Request(NamedTuple):
  """What a partition is to deal."""

  rng: Generator
  labels: Array  # [T] of the training examples.
  num_clients: int
  num_classes: int
  need: int = 0  # Rows of each client, on average where sizes differ; 0 deals all.


class Context(NamedTuple):
  """The data that `change` may depend on."""

  seed: int
  split: int  # 0 for training and 1 for test.
  num_clients: int
  num_classes: int
  labels: Array  # Classes that have training examples.
  scale: float  # Models see `x * scale`.

  def rng(self, stream: int, number: int) -> Generator:
    """The random state of a group or client in this split."""
    return prng_streams.host_rng(self.seed, stream, 2 * number + self.split)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Partition:
  """How examples are dealt to clients and changed; subclasses are frozen dataclasses.

  A subclass has `deal(rng, labels, num_clients)` or `rule`. If it has a method
  `change(x, y, group, context)`, this returns the examples x [N, ...], y [N] of a group
  (of a client, if `by_client`) as the group has them.
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
    right = inner is None or (isinstance(inner, Partition) and inner.layer < self.layer)
    check(right, f'partition: {name_of(type(self))} cannot hold {inner!s:.50}')

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
    """Deals rows to clients.

    Args:
      rng: random state.
      labels: [T] classes of the examples; 0 where targets are no classes.
      num_clients: M.

    Returns:
      The rows of each client.
    """
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
    count = num_clients or self.num_clients or DEFAULT_NUM_CLIENTS
    fixed = self.num_clients or count
    check(count == fixed, f'num_clients: is {count}, but {self!s:.50} lists {fixed}')
    clusters = any(part.by_cluster for part in self.parts)
    fits = pool.cluster is not None or not clusters
    check(fits, 'partition: cluster needs clusters in the data')
    fits = pool.task == CLASSIFICATION.name or not any(p.by_label for p in self.parts)
    check(fits, f'partition: {self!s:.40} needs classes; not {pool.task}')
    rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
    rows, apart = [np.flatnonzero(mask) for mask in pool.masks], pool.test is not None
    need = examples if apart else with_test(examples)
    least, equal = (1 if apart else 2), type(self.parts[-1]).__name__ == 'Iid'
    requested, dealt = max(need, least) * count, len(rows[0]) * self.copies
    check(requested <= dealt, f'num_clients: need {requested} examples; got {dealt}')
    if need and not (equal or clusters) and self.groups_of(count) is None:
      rows[0] = rows[0][rng.choice(len(rows[0]), need * count, replace=False)]
    labels = [pool.labels[r] for r in rows]
    known = [(pool.cluster[r],) if clusters else () for r in rows]  # type: ignore[index]
    rule = self.rule(Request(rng, labels[0], count, pool.num_classes, need))
    train = [rows[0][r] for r in rule(labels[0], least, *known[0])]
    fewest = min(map(len, train))
    enough = fewest >= max(least, need * equal)
    check(enough, f'num_clients: a client has {fewest} examples; lower it')
    train = [r[: need or None] for r in train] if equal else train
    if apart:
      return None, train, [rows[1][r] for r in rule(labels[1], 0, *known[1])]
    rng = prng_streams.host_rng(seed, prng_streams.SPLIT)
    return None, *split_each(rng, [np.sort(r) for r in train] if last else train, last)


def name_of(kind: type) -> str:
  """The name of a kind in expressions, in snake case."""
  letters = [f'_{c.lower()}' if c.isupper() else c for c in kind.__name__]
  name = ''.join(letters).lstrip('_')
  return 'cluster' if name == 'in_clusters' else name


def _frozen(values: Any) -> Any:
  """Tuples in place of lists."""
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
  of_classes = np.stack(counts, axis=1)
  return of_classes / np.maximum(1, of_classes.sum(axis=1, keepdims=True))


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
