"""Partitions into groups of clients, the true clusters, and changes of examples."""

import dataclasses
import functools
import numbers
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.data.partitions import image_corruptions
from fesem_jax.data.partitions.dealt import Iid
from fesem_jax.data.partitions.partition import (
  Context,
  Partition,
  Request,
  Rows,
  Rule,
  rows_of,
)
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  from fesem_jax.data.pool import Pool

MAX_GROUPS = 1000

Array = np.ndarray
Generator = np.random.Generator
Changed = tuple[Array, Array]  # x [N, ...], y [N]


class Parted(Partition):
  """The base class of kinds that deal within K parts; client i is of part i mod K."""

  layer: ClassVar[int] = 1
  # Whether parts, whose rows are in random order, are cut as they are.
  cuts: ClassVar[Any] = False

  within: Partition = dataclasses.field(default=Iid(), kw_only=True)

  def pools(self, rng: Generator, count: int, cluster: Array) -> Iterable[Array]:
    """The rows of each part, in random order; parts draw one after another."""
    raise NotImplementedError

  def rule(self, request: Request) -> Rule:
    rng, _, num_clients, num_classes, need = request
    rules: dict[int, Rule] = {}

    def deal(y: np.ndarray, least: int, cluster: np.ndarray) -> Rows:
      clients, num_parts = [np.array([], int)] * num_clients, len(np.unique(cluster))
      check(num_clients >= num_parts, f'num_clients: fewer than {num_parts} groups')
      for k, rows in enumerate(self.pools(rng, len(y), cluster)):
        members = range(k, num_clients, num_parts)
        if self.cuts:
          parts = np.array_split(rows, len(members))
        else:
          if k not in rules:  # The training split, which comes first.
            few = f'group {k}: {len(rows)} examples for {len(members)} clients'
            check(len(rows) >= max(need, least) * len(members), few)
            rows = rows[: need * len(members) or None]
            inner = Request(rng, y[rows], len(members), num_classes)
            rules[k] = self.within.rule(inner)
          parts = [rows[r] for r in rules[k](y[rows], least)]
        for member, part in zip(members, parts, strict=True):
          clients[member] = part
      return clients

    return deal


class InClusters(Parted):
  """Clients within the clusters that the data know; client i is of cluster i mod K.

  Attributes:
    within: how the examples of a cluster are dealt to its clients.
  """

  def pools(self, rng: Generator, count: int, cluster: Array) -> Iterable[Array]:
    return (rng.permutation(np.flatnonzero(cluster == k)) for k in np.unique(cluster))

  def check_fits(self, pool: 'Pool') -> None:
    super().check_fits(pool)
    check(pool.cluster is not None, 'partition: cluster needs clusters in the data')


class Grouped(Parted):
  """The base class of groups of clients that change their examples.

  Attributes:
    groups: k, or a list with the setting of each.
    disjoint: whether the groups divide the examples; if False, each holds all of them.
    within: how the examples of a group are dealt to its clients.
  """

  groups: Any = 4
  disjoint: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.groups, tuple):
      whole = isinstance(self.groups, numbers.Integral)
      check(whole and 0 < self.groups <= MAX_GROUPS, f'groups: must be 1..{MAX_GROUPS}')
    count = len(self.settings)
    distinct = count and len(set(self.settings)) == count
    check(distinct, f'groups: must be different; got {self.groups!s:.40}')
    right = isinstance(self.groups, tuple) or count == self.groups
    check(right, f'groups: there are {count} kinds; got {self.groups}')

  def defaults(self, count: int) -> tuple[Any, ...]:
    """The settings of k groups."""
    return tuple(range(count))

  @functools.cached_property
  def settings(self) -> tuple[Any, ...]:
    """What sets each group apart."""
    listed = isinstance(self.groups, tuple)
    return self.groups if listed else self.defaults(self.groups)

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the groups, which figures show."""
    return tuple(map(str, self.settings))

  @property
  def copies(self) -> int:  # type: ignore[override]
    return 1 if self.disjoint else len(self.settings)

  @property
  def cuts(self) -> bool:  # type: ignore[override]
    return self.within == Iid()

  @property
  def num_clients(self) -> int:
    return self.within.num_clients * len(self.settings)

  def groups_of(self, num_clients: int) -> np.ndarray:
    return np.arange(num_clients) % len(self.settings)

  def pools(self, rng: Generator, count: int, cluster: Array) -> Iterable[Array]:
    rows, k = rng.permutation(count), len(self.settings)
    if self.disjoint:
      return np.array_split(rows, k)
    return [rng.permutation(count) for _ in range(k)]

  def rule(self, request: Request) -> Rule:
    self.within.first_draws(request)
    groups = np.arange(len(self.settings))
    deal = super().rule(request._replace(need=0) if self.cuts else request)
    return lambda y, least: deal(y, least, groups)


class Rotated(Grouped):
  """Groups of clients whose images are turned; the groups are the true clusters.

  Attributes:
    groups: k, group g being turned by g * 360 / k degrees; or the degrees of each,
      counterclockwise.
    disjoint: whether the groups divide the examples; if False, each holds all of them.
    sampling: 'linear', which continues the border (corners of another shade would
      betray the angle), or 'nearest', which fills corners with 0, as torchvision does;
      multiples of 90 degrees are exact.
    within: how the examples of a group are dealt to its clients.
  """

  of_images: ClassVar[bool] = True

  groups: int | Sequence[float] = 4
  sampling: Literal['linear', 'nearest'] = 'linear'

  def __post_init__(self) -> None:
    super().__post_init__()
    right = all(isinstance(degrees, numbers.Real) for degrees in self.settings)
    check(right, f'groups: must be degrees; got {self.groups!s:.40}')

  def defaults(self, count: int) -> tuple[Any, ...]:
    return tuple(360 * group / count for group in range(count))

  @property
  def names(self) -> tuple[str, ...]:
    return tuple(f'{degrees:.4g} degrees' for degrees in self.settings)

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    return rotate(x, self.settings[group], self.sampling), y


def rotate(x: np.ndarray, degrees: float, sampling: str = 'linear') -> np.ndarray:
  """Images [N, H, W, ...] turned counterclockwise; `sampling` is as of `Rotated`."""
  square = x.ndim > 2 and x.shape[1] == x.shape[2]
  check(square, f'partition: rotated needs square images; x has shape {x.shape}')
  quarter_turns, remainder = divmod(degrees, 90)
  if remainder == 0:
    return np.rot90(x, int(quarter_turns), axes=(1, 2))
  from scipy import ndimage  # Slow to import.

  if sampling == 'nearest':
    # 'grid-constant': half a pixel beyond the middle of the last one is of the image.
    return ndimage.rotate(
      x, degrees, (1, 2), reshape=False, order=0, mode='grid-constant'
    )
  turned = ndimage.rotate(
    x.astype(np.float32), degrees, (1, 2), reshape=False, order=1, mode='nearest'
  )
  return np.round(turned).astype(np.uint8) if x.dtype == np.uint8 else turned


class LabelPermuted(Grouped):
  """Groups of clients with labels in another order; they are the true clusters.

  Attributes:
    groups: k; the first keeps its labels.
  """

  by_label: ClassVar[bool] = True

  groups: Annotated[int, ranges.Range(1, MAX_GROUPS)] = 4

  @property
  def names(self) -> tuple[str, ...]:
    others = (f'permuted labels {group}' for group in self.settings[1:])
    return 'original labels', *others

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
    groups: k, of which the first swaps nothing and the others 1 and 2, 3 and 4, and so
      on; or the pairs of labels of the groups after the first.
  """

  by_label: ClassVar[bool] = True

  groups: Any = 4

  @functools.cached_property
  def settings(self) -> tuple[Any, ...]:
    if isinstance(self.groups, tuple):
      for pair in self.groups:
        right = isinstance(pair, tuple) and len(set(pair)) == 2 == len(pair)
        check(
          right, f'groups: {pair!s:.20} is no pair of labels; e.g. [[1, 7], [3, 5]]'
        )
      return (), *self.groups
    return (), *((2 * g - 1, 2 * g) for g in range(1, self.groups))

  @property
  def names(self) -> tuple[str, ...]:
    swapped = (f'labels {a} and {b} swapped' for a, b in self.settings[1:])
    return 'original labels', *swapped

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    table, pair = np.arange(context.num_classes), list(self.settings[group])
    right = all(label in range(len(table)) for label in pair)
    check(right, f'groups: {pair} are not among {len(table)} classes')
    table[pair] = pair[::-1]
    return x, table[y]


class Corrupted(Grouped):
  """Groups of clients with corrupted images (Hendrycks and Dietterich 2019).

  Attributes:
    groups: k, or the corruption of each, of `image_corruptions.NAMES`.
    strength: 1 to 5.
  """

  of_images: ClassVar[bool] = True

  groups: int | Sequence[str] = 4
  strength: Annotated[int, ranges.Range(1, 5)] = 3

  def __post_init__(self) -> None:
    if isinstance(self.groups, list | tuple):  # `none` is None in expressions.
      names = tuple('none' if name is None else name for name in self.groups)
      object.__setattr__(self, 'groups', names)
    super().__post_init__()
    for name in self.settings:
      ranges.check_choice('groups', name, image_corruptions.NAMES)

  def defaults(self, count: int) -> tuple[Any, ...]:
    return image_corruptions.NAMES[:count]

  @property
  def names(self) -> tuple[str, ...]:
    return tuple(name.replace('_', ' ') for name in self.settings)

  def change(self, x: Array, y: Array, group: int, context: Context) -> Changed:
    rng, name = context.rng(prng_streams.CORRUPT_IMAGES, group), self.settings[group]
    new = image_corruptions.corrupted(x, name, self.strength, context.scale, rng)
    return new, y


class Noisy(Partition):
  """Gaussian noise of variance i / M times `variance` for client i (Li et al. 2022).

  NIID-Bench's noise-based feature imbalance (Section IV-B); its code takes the number
  for the standard deviation and counts clients from 0. The noise is on what models see
  and is not clipped, so that bytes become float32; columns are standardized before.

  Attributes:
    variance: of the last client.
    within: how examples are dealt.
  """

  layer: ClassVar[int] = 2
  by_client: ClassVar[bool] = True

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
  x: np.ndarray,
  y: np.ndarray,
  sizes: np.ndarray,
  groups: np.ndarray | None,
  context: Context,
) -> Changed:
  """Examples [T, ...] in the order of clients as the partition changes them.

  Args:
    partition: the inner ones change examples first.
    x: [T, ...] features.
    y: [T] targets.
    sizes: [M] examples of each client.
    groups: [M] group of each client, in a phase of a drift maybe not the partition's.
    context: what changes may depend on.
  """
  for part in reversed(partition.parts):
    change = getattr(part, 'change', None)
    if change is None:
      continue
    numbers_of = np.arange(len(sizes)) if part.by_client or groups is None else groups
    of_rows = np.repeat(numbers_of, sizes)
    lists = rows_of(of_rows, int(numbers_of.max()) + 1)
    parts = [change(x[r], y[r], group, context) for group, r in enumerate(lists)]
    back = np.argsort(np.concatenate(lists))
    x = np.concatenate([a for a, _ in parts])[back]
    y = np.concatenate([b for _, b in parts])[back]
  return x, y


def names_of_groups(partition: Partition) -> tuple[str, ...] | None:
  """Names of the groups of a partition; None without groups."""
  names = [part.names for part in partition.parts if isinstance(part, Grouped)]
  return names[0] if names else None
