"""Each partition as a value of its own class, with the arguments that it has."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from fesem_jax.data.partitions.value import GROUPED, Partition
from fesem_jax.utils.errors import UserError, check_whole


def _flag(name: str, default: Any, listed: str = '') -> Any:
  """A field that is a field of `Partition`; another one where it is a list."""
  return dataclasses.field(default=default, metadata={'flag': name, 'listed': listed})


@dataclasses.dataclass(frozen=True)
class Kind:
  """The base class of partitions."""

  name: ClassVar[str] = ''

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.metadata.get('listed') and not isinstance(value, Iterable):
        check_whole(**{field.name: value})
    self.flat()

  def flat(self, **common: Any) -> Partition:
    """The same as flags say it; `common` are fields that all partitions have."""
    try:
      return Partition(**self._fields(), **common)
    except UserError as e:
      text = str(e)
      for argument, flags in self._flags().items():
        text = re.sub(rf'(^|`)({"|".join(flags)})\b', rf'\1{argument}', text)
      raise UserError(text) from None

  def _fields(self) -> dict[str, Any]:
    """Fields of the `Partition`."""
    fields: dict[str, Any] = {'name': self.name}
    for field in dataclasses.fields(self):
      value, data = getattr(self, field.name), field.metadata
      if field.name != 'dealt':
        is_list = data['listed'] and isinstance(value, Iterable)
        fields[data['listed'] if is_list else data['flag']] = value
      elif value is not None:
        own = value._fields()
        fields |= own | {'name': f'{self.name}+{own["name"]}'}
    return fields

  @classmethod
  def _flags(cls) -> dict[str, list[str]]:
    """Argument -> the fields of `Partition` that it is."""
    data = {field.name: field.metadata for field in dataclasses.fields(cls)}
    return {
      name: [flag for flag in (of['flag'], of['listed']) if flag]
      for name, of in data.items()
      if name != 'dealt'
    }


@dataclasses.dataclass(frozen=True)
class Natural(Kind):
  """The clients that the data set has.

  Attributes:
    min_examples: leaves out clients with fewer training and test examples together.

  Raises:
    UserError: on a value that is out of range; so do all partitions.
  """

  name = 'natural'
  min_examples: int = _flag('min_examples', 0)


@dataclasses.dataclass(frozen=True)
class Iid(Kind):
  """Equal shares of all examples, at random."""

  name = 'iid'


@dataclasses.dataclass(frozen=True)
class Unequal(Kind):
  """Sizes from a Dirichlet distribution, and labels at random.

  Attributes:
    alpha: concentration; smaller is more skewed.
  """

  name = 'unequal'
  alpha: float = _flag('dirichlet_alpha', 0.5)


@dataclasses.dataclass(frozen=True)
class Lognormal(Kind):
  """Sizes in proportion to exp(sigma z), z standard normal, as in FedDyn (Acar 2021).

  Attributes:
    sigma: deviation of the logarithm of sizes.
  """

  name = 'lognormal'
  sigma: float = _flag('lognormal_sigma', 0.3)


@dataclasses.dataclass(frozen=True)
class PowerLaw(Kind):
  """Few labels and sizes of a power law, as FedProx's MNIST (Li et al. 2020).

  Attributes:
    sigma: examples of a label are in proportion to exp(sigma z), z standard normal.
    labels: of each client.
  """

  name = 'power_law'
  sigma: float = _flag('power_law_sigma', 2.0)
  labels: int = _flag('labels_per_client', 2)


@dataclasses.dataclass(frozen=True)
class Dirichlet(Kind):
  """Examples of each class by shares from a Dirichlet distribution.

  Attributes:
    alpha: concentration; smaller is more skewed.
    min_examples: if positive, the draw is NIID-Bench's (Li et al. 2022): a client above
      the mean size gets no more of later classes, and the draw is repeated until each
      client has this many examples, training (and test, if these are split off).
  """

  name = 'dirichlet'
  alpha: float = _flag('dirichlet_alpha', 0.5)
  min_examples: int = _flag('dirichlet_min_examples', 0)


@dataclasses.dataclass(frozen=True)
class DirichletLabels(Kind):
  """Clients of equal sizes whose labels are from Dirichlet distributions (Hsu 2019).

  Attributes:
    alpha: concentration; smaller is more skewed.
  """

  name = 'dirichlet_labels'
  alpha: float = _flag('dirichlet_alpha', 0.5)


@dataclasses.dataclass(frozen=True)
class Labels(Kind):
  """A few labels for each client, as NIID-Bench (Li et al. 2022).

  Attributes:
    per_client: labels of each client.
  """

  name = 'labels'
  per_client: int = _flag('labels_per_client', 2)


@dataclasses.dataclass(frozen=True)
class Shards(Kind):
  """Shards of examples in the order of their labels, as in FedAvg (McMahan 2017).

  Attributes:
    per_client: shards of each client.
  """

  name = 'shards'
  per_client: int = _flag('classes_per_client', 2)


@dataclasses.dataclass(frozen=True)
class Rows(Kind):
  """The examples of each client by their numbers.

  Attributes:
    client_rows: a list of row numbers for each client, or a file that has them. Rows
      are numbered from 0, the training examples in the order of the files and then the
      test examples that the data set has itself.
  """

  name = 'rows'
  client_rows: Any = dataclasses.field(metadata={'flag': 'client_rows', 'listed': ''})

  def __post_init__(self) -> None:
    pass  # Files are read once, by `flat`.


@dataclasses.dataclass(frozen=True)
class InClusters(Kind):
  """Clients within the clusters that the data set knows, which are the true ones.

  Attributes:
    dealt: how examples of a cluster are dealt to its clients; None deals equal shares.
  """

  name = 'cluster'
  dealt: Kind | None = None


@dataclasses.dataclass(frozen=True)
class Noisy(Kind):
  """Gaussian noise on features, more for later clients.

  Attributes:
    variance: client i of 1..M has noise of i / M times this variance.
    dealt: how examples are dealt; None deals equal shares.
  """

  name = 'noisy'
  variance: float = _flag('noise_variance', 0.1)
  dealt: Kind | None = None


@dataclasses.dataclass(frozen=True)
class Rotated(Kind):
  """Groups of clients whose images are turned; the groups are the true clusters.

  Attributes:
    groups: how many, k, group g being turned by g * 360 / k degrees; or the degrees of
      each, counterclockwise.
    sampling: 'linear', which continues the border, or 'nearest', which fills corners
      with 0; multiples of 90 degrees are exact.
    disjoint: whether the groups divide the examples among themselves; if False, each
      holds all of them.
    dealt: how examples of a group are dealt to its clients; None deals equal shares.
  """

  name = 'rotated'
  groups: int | Sequence[float] = _flag('partition_groups', 4, 'rotations')
  sampling: str = _flag('rotation_sampling', 'linear')
  disjoint: bool = _flag('disjoint_groups', False)
  dealt: Kind | None = None


@dataclasses.dataclass(frozen=True)
class LabelPermuted(Kind):
  """Groups of clients with labels in another order; they are the true clusters.

  Attributes:
    groups: how many; the first keeps its labels.
    disjoint: see `Rotated`.
    dealt: see `Rotated`.
  """

  name = 'label_permuted'
  groups: int = _flag('partition_groups', 4)
  disjoint: bool = _flag('disjoint_groups', False)
  dealt: Kind | None = None


@dataclasses.dataclass(frozen=True)
class LabelSwapped(Kind):
  """Groups of clients that swap two labels; they are the true clusters.

  Attributes:
    groups: how many, of which the first swaps nothing and the others 1 and 2, 3 and 4,
      and so on; or the pairs of labels of the groups after the first.
    disjoint: see `Rotated`.
    dealt: see `Rotated`.
  """

  name = 'label_swapped'
  groups: int | Sequence[tuple[int, int]] = _flag('partition_groups', 4, 'label_swaps')
  disjoint: bool = _flag('disjoint_groups', False)
  dealt: Kind | None = None


@dataclasses.dataclass(frozen=True)
class Corrupted(Kind):
  """Groups of clients whose images are corrupted; they are the true clusters.

  Attributes:
    groups: how many, or the corruption of each, of `image_corruptions.NAMES`.
    strength: 1 to 5.
    disjoint: see `Rotated`.
    dealt: see `Rotated`.
  """

  name = 'corrupted'
  groups: int | Sequence[str] = _flag('partition_groups', 4, 'image_corruptions')
  strength: int = _flag('corruption_strength', 3)
  disjoint: bool = _flag('disjoint_groups', False)
  dealt: Kind | None = None


KINDS: tuple[type[Kind], ...] = (
  Natural, Iid, Dirichlet, DirichletLabels, Unequal, Lognormal, Labels, PowerLaw,
  Shards, Rows, InClusters, Noisy, Rotated, LabelPermuted, LabelSwapped, Corrupted,
)  # fmt: skip


def _of_flags() -> dict[str, tuple[str, ...]]:
  """Field of `Partition` -> the partitions that it is for; the others are for all."""
  kinds: dict[str, tuple[str, ...]] = {}
  for kind in KINDS:
    for flags in kind._flags().values():
      for flag in flags:
        kinds[flag] = (*kinds.get(flag, ()), kind.name)
  return kinds | dict.fromkeys(('drift_rounds', 'drift_start'), GROUPED)


OF = _of_flags()
