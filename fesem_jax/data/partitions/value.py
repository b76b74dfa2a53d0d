"""A partition as flags name it: one value with the options of all of them."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.data.partitions import (
  groups,
  image_corruptions,
  listed_rows,
  lists,
  rotation,
)
from fesem_jax.utils.errors import UserError, argument, check_at_least, check_whole
from fesem_jax.utils.ranges import check_choice

# How examples are dealt.
DEALT = (
  'iid', 'unequal', 'lognormal', 'power_law', 'dirichlet', 'dirichlet_labels', 'labels',
  'shards',
)  # fmt: skip
# Clients come in groups, which are the true clusters.
GROUPED = ('rotated', 'label_permuted', 'label_swapped', 'corrupted')
# They look at the labels of examples.
BY_LABEL = (
  'dirichlet', 'dirichlet_labels', 'labels', 'shards', 'power_law', 'label_permuted',
  'label_swapped',
)  # fmt: skip
NAMES = ('natural', *DEALT, 'rows', 'cluster', 'noisy', *GROUPED)

DEFAULT_NUM_CLIENTS = 100  # Where the data set has no clients of its own.

# Groups of clients before the first round at which they change.
DRIFT_STARTS = ('groups', 'one')

MAX_GROUPS = 1000
_COUNTS = {  # The least of each.
  'num_clients': 0, 'examples_per_client': 0, 'min_examples': 0, 'partition_groups': 1,
  'dirichlet_min_examples': 0, 'classes_per_client': 1, 'labels_per_client': 1,
}  # fmt: skip
# Beyond any use: larger ones would run out of memory, or their exponentials overflow.
_MOST = {
  'num_clients': 10**7, 'partition_groups': MAX_GROUPS, 'lognormal_sigma': 100,
  'power_law_sigma': 100, 'noise_variance': 10**12,
}  # fmt: skip
_MAX_ALPHA = 1e300


@dataclasses.dataclass(frozen=True)
class Partition:
  """How examples are partitioned among clients and changed; see `kinds` for users.

  Attributes:
    name: one of `NAMES`, or two of them as 'rotated+dirichlet': clients in groups, and
      labels or sizes that are dealt inside of each group; 'cluster+dirichlet' deals
      inside of the clusters that the data set knows, 'cluster' equal shares. '' is
      'natural' where the data set has clients of its own, 'cluster' where it has known
      clusters alone, and 'iid' elsewhere.
    num_clients: M; 0 is all natural clients, or 100.
    examples_per_client: training examples of each client (of natural clients: at most;
      where sizes or labels differ: on average); 0 deals all.
    client_rows: under 'rows', the examples of each client, or a file that lists them;
      see `listed_rows.read`. Rows are numbered from 0, the training examples in the
      order of the files and then the test examples that the data set has itself.
    min_examples: leaves out natural clients with fewer training and test examples
      together.
    partition_groups: k, the number of groups, unless `rotations`, `label_swaps` or
      `image_corruptions` set it. Group g of 'rotated' is turned by g * 360 / k degrees.
    disjoint_groups: whether the groups divide the examples among themselves; if
      False, each holds all of them.
    dirichlet_alpha: concentration of 'dirichlet', 'dirichlet_labels' and 'unequal';
      smaller is more skewed.
    dirichlet_min_examples: if positive, 'dirichlet' is NIID-Bench's: a client above
      the mean size gets no more of later classes, and the draw is repeated until each
      client has this many examples, training (and test, if these are split off).
    classes_per_client: label shards of each client under 'shards'.
    labels_per_client: labels of each client under 'labels' and 'power_law'.
    lognormal_sigma: of the sizes under 'lognormal', in proportion to exp(sigma z).
    power_law_sigma: the same of a client's examples of a label under 'power_law'.
    noise_variance: client i of 1..M under 'noisy' has Gaussian noise of i / M times
      this variance on its features.
    label_swaps: pairs of labels that the groups of 'label_swapped' swap; the first
      group has none. By default 1 and 2, 3 and 4, and so on.
    rotations: degrees of each group of 'rotated', counterclockwise.
    rotation_sampling: 'linear', which continues the border, or 'nearest', which fills
      corners with 0; multiples of 90 degrees are exact.
    image_corruptions: of each group of 'corrupted', of `image_corruptions.NAMES`; by
      default the first k of these.
    corruption_strength: 1 to 5.
    drift_rounds: rounds, from 2, at which each client draws a random new group, as in
      FedDrift's settings. It keeps its examples, transformed as the new group requires.
    drift_start: groups until then: 'groups' of equal size, or 'one' for all clients.

  Raises:
    UserError: on a value that is invalid for all data.
  """

  name: str = ''
  num_clients: int = 0
  examples_per_client: int = 0
  min_examples: int = 0
  client_rows: Any = ''
  partition_groups: int = 4
  disjoint_groups: bool = False
  dirichlet_alpha: float = 0.5
  dirichlet_min_examples: int = 0
  classes_per_client: int = 2
  labels_per_client: int = 2
  lognormal_sigma: float = 0.3
  power_law_sigma: float = 2.0
  noise_variance: float = 0.1
  label_swaps: Sequence[tuple[int, int]] = ()
  rotations: Sequence[float] = ()
  rotation_sampling: str = 'linear'
  image_corruptions: Sequence[str] = ()
  corruption_strength: int = 3
  drift_rounds: Sequence[int] = ()
  drift_start: str = 'groups'

  def __post_init__(self) -> None:
    check_whole(**{name: getattr(self, name) for name in _COUNTS})
    for name in _COUNTS | _MOST:
      value, most = getattr(self, name), _MOST.get(name, math.inf)
      check_at_least(_COUNTS.get(name, 0), **{name: value})
      if value > most:
        raise UserError(f'{argument(name, value)} must be at most {most}.')
    if not 0 < self.dirichlet_alpha <= _MAX_ALPHA:
      raise UserError(
        f'`dirichlet_alpha={self.dirichlet_alpha}` must be positive, and at most '
        f'{_MAX_ALPHA}.'
      )
    check_choice('rotation_sampling', self.rotation_sampling, rotation.SAMPLINGS)
    if self.corruption_strength not in range(1, 6):
      named = argument('corruption_strength', self.corruption_strength)
      raise UserError(f'{named} must be one of 1, 2, 3, 4, 5.')
    check_choice('drift_start', self.drift_start, DRIFT_STARTS)
    for name, parse in (
      ('rotations', lists.degrees), ('label_swaps', lists.pairs),
      ('image_corruptions', tuple), ('drift_rounds', lists.rounds),
    ):  # fmt: skip
      object.__setattr__(self, name, parse(getattr(self, name)))
    for kind in self.image_corruptions:
      check_choice('image_corruptions', kind, image_corruptions.NAMES)
    self._check_name()
    self._check_drift()
    if self.grouping == 'corrupted' and self.num_groups > len(image_corruptions.NAMES):
      raise UserError(
        f'`partition_groups={self.num_groups}` must be at most '
        f'{len(image_corruptions.NAMES)}, the number of corruptions, under '
        f'`partition={self.name}`.'
      )

  def _check_name(self) -> None:
    """Raises `UserError` unless the name is one of `NAMES`, or a product of two."""
    if not self.name:
      if not isinstance(self.client_rows, str) or self.client_rows:
        raise UserError(
          '`client_rows` is for `partition=rows`; choose it, or leave the rows out.'
        )
      return
    named = argument('partition', self.name)
    parts = self.parts
    if len(parts) == 1:
      check_choice('partition', self.name, NAMES)
      if self.name == 'rows':
        self._check_rows()
      return
    for part in parts:
      if part not in NAMES:
        raise UserError(
          f'{named}: {argument("partition", part)} is unknown; choose two of '
          f'{", ".join(NAMES[1:])}.'
        )
    kinds = [
      'dealt' if part in DEALT else 'grouped' if part in GROUPED else part
      for part in parts
    ]
    twice = 'cluster' in parts and 'grouped' in kinds
    alone = {'natural', 'rows'} & set(parts)
    if len(parts) != 2 or kinds[0] == kinds[1] or twice or alone:
      raise UserError(
        f'{named} must be a product of two of different kinds: groups '
        f'({", ".join(GROUPED)}) or known ones (cluster), labels or sizes '
        f'({", ".join(DEALT)}), or noisy.'
      )

  def _check_rows(self) -> None:
    """Raises `UserError` unless the clients are those of `client_rows`."""
    if isinstance(self.client_rows, str) and not self.client_rows:
      raise UserError('`partition=rows` needs `client_rows`: the rows of each client.')
    if self.examples_per_client:
      raise UserError('`examples_per_client` does not apply to `partition=rows`.')

  def _check_drift(self) -> None:
    """Raises `UserError` on groups that change where there are none."""
    if self.drift_rounds and not self.grouping:
      named = argument('drift_rounds', ','.join(map(str, self.drift_rounds)))
      raise UserError(
        f'{named} changes the groups of clients: choose a `partition` that makes '
        f'groups, one of {", ".join(GROUPED)}.'
      )
    if self.drift_start != 'groups' and not self.drift_rounds:
      raise UserError(
        f'{argument("drift_start", self.drift_start)} needs `drift_rounds`: the rounds '
        'at which groups change.'
      )

  @property
  def parts(self) -> tuple[str, ...]:
    """The names of a product, or the only one."""
    return tuple(self.name.split('+'))

  @functools.cached_property
  def listed(self) -> listed_rows.ClientRows:
    """The rows of each client under 'rows'."""
    return listed_rows.read(self.client_rows)

  @property
  def count(self) -> int:
    """M where clients are dealt examples."""
    if self.name == 'rows':
      return len(self.listed.train)
    return self.num_clients or DEFAULT_NUM_CLIENTS

  @property
  def dealing(self) -> str:
    """How examples are dealt, within each group if there are groups."""
    return next((part for part in self.parts if part in DEALT), 'iid')

  @property
  def in_clusters(self) -> bool:
    """True if examples are dealt inside of clusters that the data set knows."""
    return 'cluster' in self.parts

  @property
  def grouping(self) -> str:
    """The part that makes groups of clients; '' without groups."""
    return next((part for part in self.parts if part in GROUPED), '')

  @property
  def num_groups(self) -> int:
    """The number of groups, k."""
    if self.grouping == 'label_swapped' and self.label_swaps:
      return len(self.label_swaps) + 1
    of_list = {'rotated': self.rotations, 'corrupted': self.image_corruptions}
    return len(of_list.get(self.grouping, ())) or self.partition_groups

  @property
  def degrees(self) -> tuple[float, ...]:
    """By which each group of 'rotated' is turned."""
    k = self.num_groups
    return tuple(self.rotations) or tuple(360 * group / k for group in range(k))

  @property
  def swaps(self) -> tuple[tuple[int, int], ...]:
    """Swapped labels of the second group of 'label_swapped' and those after it."""
    k = self.num_groups
    return tuple(self.label_swaps) or tuple((2 * g - 1, 2 * g) for g in range(1, k))

  @property
  def corruptions(self) -> tuple[str, ...]:
    """The corruption of each group of 'corrupted'."""
    return tuple(self.image_corruptions) or image_corruptions.NAMES[: self.num_groups]

  def groups_of_clients(self) -> np.ndarray:
    """[M] group of each client."""
    return groups.groups_of_clients(self.count, self.num_groups)


FIELDS = tuple(field.name for field in dataclasses.fields(Partition))
