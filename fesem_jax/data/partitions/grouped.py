"""Partitions into groups of clients, the true clusters, and changes of examples."""

import dataclasses
import numbers
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.data.partitions import image_corruptions
from fesem_jax.data.partitions.partition import (
  Array,
  Context,
  Generator,
  Iid,
  Partition,
  Request,
  Rows,
  Rule,
  rows_of,
)
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

Changed = tuple[Array, Array]  # x [N, ...], y [N]

_MAX_GROUPS = 1000


class Parted(Partition):
  """The base class of kinds that deal within K parts; client i is of part i mod K."""

  layer = 1
  cuts: ClassVar[Any] = False  # Whether parts, in random order, are cut as they are.

  within: Partition = dataclasses.field(default=Iid(), kw_only=True)

  def pools(self, rng: Generator, count: int, cluster: Array) -> Iterable[Array]:
    """The rows of each part, in random order; parts draw one after another."""
    raise NotImplementedError

  def rule(self, request: Request) -> Rule:
    rng, _, num_clients, num_classes, need = request
    rules: dict[int, Rule] = {}

    def deal(y: Array, least: int, cluster: Array) -> Rows:
      clients, num_parts = [np.array([], int)] * num_clients, len(np.unique(cluster))
      check(num_clients >= num_parts, f'num_clients: fewer than {num_parts} groups')
      for k, rows in enumerate(self.pools(rng, len(y), cluster)):
        members = range(k, num_clients, num_parts)
        if self.cuts:
          clients[k::num_parts] = np.array_split(rows, len(members))
          continue
        if k not in rules:  # The training split, which comes first.
          text = f'num_clients: group {k} has {len(rows)} examples for {len(members)}'
          check(len(rows) >= max(need, least) * len(members), text)
          rows = rows[: need * len(members) or None]
          rules[k] = self.within.rule(Request(rng, y[rows], len(members), num_classes))
        clients[k::num_parts] = [rows[r] for r in rules[k](y[rows], least)]
      return clients

    return deal


class InClusters(Parted):
  """Clients of one known cluster each, client i of cluster i mod K."""

  by_cluster = True

  def pools(self, rng: Generator, count: int, cluster: Array) -> Iterable[Array]:
    return (rng.permutation(np.flatnonzero(cluster == k)) for k in np.unique(cluster))


class Grouped(Parted):
  """The base class of groups of clients that change their examples.

  Attributes:
    groups: k, or a list with the setting of each.
    disjoint: whether the groups divide the examples; if False, each holds all.
    within: how the examples of a group are dealt to its clients.
  """

  setting: ClassVar[type] = numbers.Real  # The type of settings.

  groups: Any = 4
  disjoint: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    listed = isinstance(self.groups, tuple)
    valid = listed or isinstance(self.groups, numbers.Integral)
    valid = valid and all(isinstance(x, self.setting) for x in self.settings)
    count = len(set(self.settings)) if valid else 0
    valid = 0 < count == len(self.settings) <= _MAX_GROUPS
    valid = valid and (count == self.groups or listed)
    check(valid, f'groups: got {self.groups!s:.40}; give k, or different settings')

  def defaults(self, count: int) -> Sequence[Any]:
    """The settings of k groups."""
    return range(count)

  def name(self, setting: Any) -> str:
    """The name of a group in figures."""
    return str(setting)

  @property
  def settings(self) -> tuple[Any, ...]:
    """The value that sets each group apart."""
    listed = isinstance(self.groups, tuple)
    return tuple(self.groups if listed else self.defaults(self.groups))

  @property
  def copies(self) -> int:  # type: ignore[override]
    return 1 if self.disjoint else len(self.settings)

  @property
  def cuts(self) -> bool:  # type: ignore[override]
    return self.within == Iid()

  @property
  def num_clients(self) -> int:
    return self.within.num_clients * len(self.settings)

  def groups_of(self, num_clients: int) -> Array:
    return np.arange(num_clients) % len(self.settings)

  def pools(self, rng: Generator, count: int, cluster: Array) -> Iterable[Array]:
    rows, k = rng.permutation(count), len(self.settings)
    if self.disjoint:
      return np.array_split(rows, k)
    return [rng.permutation(count) for _ in range(k)]

  def rule(self, request: Request) -> Rule:
    self.within.first_draws(request)
    deal = super().rule(request._replace(need=0) if self.cuts else request)
    return lambda y, least: deal(y, least, np.arange(len(self.settings)))


class Rotated(Grouped):
  """Groups of clients whose images are turned; the groups are the true clusters.

  Attributes:
    groups: k groups, group g turned by g * 360 / k degrees; or the degrees of each,
      counterclockwise.
    sampling: 'linear', which continues the border, or 'nearest', which fills corners
      with 0, as torchvision does; multiples of 90 degrees are exact.
  """

  sampling: Literal['linear', 'nearest'] = 'linear'

  def defaults(self, count: int) -> Sequence[Any]:
    return [360 * group / count for group in range(count)]

  def name(self, setting: Any) -> str:
    return f'{setting:.4g} degrees'

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    return rotate(x, self.settings[group], self.sampling), y


def rotate(x: Array, degrees: float, sampling: str = 'linear') -> Array:
  """Images [N, H, W, ...] turned counterclockwise; `sampling` is as of `Rotated`."""
  square = x.ndim > 2 and x.shape[1] == x.shape[2]
  check(square, f'partition: rotated needs square images; x has shape {x.shape}')
  if degrees % 90 == 0:
    return np.rot90(x, int(degrees // 90), axes=(1, 2))
  from scipy import ndimage  # Slow to import.

  linear = sampling == 'linear'
  # 'grid-constant': half a pixel beyond the middle of the last one is of the image.
  mode = 'nearest' if linear else 'grid-constant'
  before = x.astype(np.float32) if linear else x
  options = {'reshape': False, 'order': int(linear), 'mode': mode}
  turned = ndimage.rotate(before, degrees, (1, 2), **options)
  return np.round(turned).astype(np.uint8) if x.dtype == np.uint8 else turned


class LabelPermuted(Grouped):
  """k groups of clients with permuted labels, the first with the original ones."""

  by_label = True
  groups: Annotated[int, ranges.Range(1, _MAX_GROUPS)] = 4

  def name(self, setting: Any) -> str:
    return f'permuted labels {setting}' if setting else 'original labels'

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    rng = prng_streams.host_rng(context.seed, prng_streams.RELABEL)
    count, table = len(context.labels), np.arange(context.num_classes)
    # A dict, as it keeps the order and finds repeated draws at once.
    orders: dict[tuple[int, ...], None] = {tuple(range(count)): None}
    for _ in range(1000 * len(self.settings)):
      if len(orders) > group:
        break
      orders[tuple(rng.permutation(count).tolist())] = None
    check(len(orders) > group, f'groups: {count} classes have too few permutations')
    table[context.labels] = context.labels[list(list(orders)[group])]
    return x, table[y]


class LabelSwapped(Grouped):
  """Groups of clients that swap two labels; they are the true clusters.

  Attributes:
    groups: k groups: the first swaps nothing, the others 1 and 2, 3 and 4, and so on;
      or the pairs of labels of the groups after the first.
  """

  by_label = True
  setting = tuple

  def defaults(self, count: int) -> Sequence[Any]:
    return [(2 * g - 1, 2 * g) for g in range(1, count)]

  @property
  def settings(self) -> tuple[Any, ...]:
    return (), *super().settings

  def name(self, setting: Any) -> str:
    return (
      ' and '.join(map(str, setting)) + ' swapped' if setting else 'original labels'
    )

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    table, pair = np.arange(context.num_classes), list(self.settings[group])
    valid = len(pair) == len({*pair}) in (0, 2) and {*pair} <= {*table.tolist()}
    check(valid, f'groups: {pair} is no pair of {len(table)} classes')
    table[pair] = pair[::-1]
    return x, table[y]


class Corrupted(Grouped):
  """Groups of clients with corrupted images (Hendrycks and Dietterich 2019).

  `groups` may list corruptions of `image_corruptions.NAMES`; `strength` is 1 to 5.
  """

  setting = str
  strength: Annotated[int, ranges.Range(1, 5)] = 3

  def defaults(self, count: int) -> Sequence[Any]:
    return image_corruptions.NAMES[:count]

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    rng, name = context.rng(prng_streams.CORRUPT_IMAGES, group), self.settings[group]
    new = image_corruptions.corrupted(x, name, self.strength, context.scale, rng)
    return new, y


class Noisy(Partition):
  """Gaussian noise of variance i / M times `variance` for client i (Li et al. 2022).

  NIID-Bench's noise-based feature imbalance (Section IV-B), on what models see: bytes
  become float32, and columns are standardized before.
  """

  layer = 2
  by_client = True
  variance: Annotated[float, ranges.Range(0, 1e12)] = 0.1
  within: Partition = dataclasses.field(default=Iid(), kw_only=True)

  @property
  def copies(self) -> int:  # type: ignore[override]
    return self.within.copies

  def rule(self, request: Request) -> Rule:
    return self.within.rule(request)

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    variance = self.variance * (group + 1) / context.num_clients
    deviation = np.float32(np.sqrt(variance) / context.scale)
    rng = context.rng(prng_streams.FEATURE_NOISE, group)
    return x + deviation * rng.standard_normal(x.shape, np.float32), y


def changed(
  partition: Partition,
  x: Array,
  y: Array,
  sizes: Array,
  groups: Array | None,
  context: Context,
) -> Changed:
  """Examples of clients, of `sizes` [M], as their `groups` [M] change them."""
  for part in reversed(partition.parts):
    if not hasattr(part, 'change'):
      continue
    numbers_of = np.arange(len(sizes)) if part.by_client or groups is None else groups
    lists = rows_of(np.repeat(numbers_of, sizes), int(numbers_of.max()) + 1)
    parts = [part.change(x[r], y[r], group, context) for group, r in enumerate(lists)]
    back = np.argsort(np.concatenate(lists))
    x, y = (np.concatenate(arrays)[back] for arrays in zip(*parts, strict=True))
  return x, y


def names_of_groups(partition: Partition) -> tuple[str, ...] | None:
  """Names of the groups of a partition; None without groups."""
  groups = [part for part in partition.parts if isinstance(part, Grouped)]
  return tuple(map(groups[0].name, groups[0].settings)) if groups else None
