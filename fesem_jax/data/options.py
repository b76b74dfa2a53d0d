"""Options of single data sets."""

from collections.abc import Sequence
from typing import NamedTuple

from fesem_jax.data import tables


class Options(NamedTuple):
  """Options that apply to some data sets only; the others refuse them."""

  background: str = 'white'
  tfds_name: str = ''
  hub_name: str = ''
  hub_client_column: str = ''
  hub_label_column: str = ''
  hub_image_side: int = 0
  hub_config: str = ''
  cifar100_labels: str = 'fine'
  emnist_split: str = 'byclass'
  text_stride: int = 1
  vocabulary: str = ''
  ratings_by: str = 'lecturer'
  label_column: str = ''
  client_column: str = ''
  cluster_column: str = ''
  split_column: str = ''
  drop_columns: Sequence[str] = ()
  standardize: bool = False
  synthetic_alpha: float = 1.0
  synthetic_beta: float = 1.0
  synthetic_noise: float = 0.0
  synthetic_features: int = 20
  synthetic_classes: int = 4
  synthetic_difference: str = 'labels'
  synthetic_distance: float = 1.0
  synthetic_mix: float = 0.0


def columns_of(options: Options) -> tables.Columns:
  """The columns of a table that options name."""
  o = options
  label, client, cluster, split = (
    str(name)  # Columns of a data frame may be numbers.
    for name in (o.label_column, o.client_column, o.cluster_column, o.split_column)
  )
  return tables.Columns(label, client, cluster, split, tuple(map(str, o.drop_columns)))
