"""Options of single data sets."""

from collections.abc import Sequence
from typing import NamedTuple

from fesem_jax.data import tables


class Options(NamedTuple):
  """Options that apply to some data sets only; the others refuse them.

  Attributes:
    leaf_users: where train/ and test/ of LEAF's files have other users each: 'all' of
      them, or those of 'train' or 'test' alone, each of whom is split 80/20.
    background: of FEMNIST's images, 'white' as in the files, or 'black'.
    tfds_name: data set for the data set 'tfds'.
    hub_name: OWNER/NAME for the data set 'hub'.
    hub_client_column: column that names the client of each example; '' is none.
    hub_label_column: column of the labels, which may be names; '' is the only column of
      class labels.
    hub_image_side: width and height to which all images of 'hub' are resized; 0 resizes
      images of which both sides exceed 84 to 84.
    image_side: width and height to which all images of images:FOLDER are resized; 0
      resizes images of which both sides exceed 84 to 84.
    image_groups: what folders above those of classes are: 'clients', or 'clusters',
      such as domains and hospitals, inside of which 'cluster' deals.
    hub_config: configuration of `hub_name`, where it has several.
    cifar100_labels: labels of CIFAR-100: 100 'fine' classes or 20 'coarse' ones.
    emnist_split: split of 'emnist', which decides its classes and their balance.
    text_stride: characters between the starts of two examples of 'shakespeare', except
      of LEAF; 1 is all windows, as in LEAF.
    vocabulary: characters of a plain text: 'leaf', LEAF's 80 of English (the default of
      'shakespeare'), or 'data', those of the training text, of any script (the default
      of text:FILE).
    label_column: column of the labels or targets of table:FILE or of a data frame; ''
      is y.
    client_column: column of the client of each row of a table; '' is client, if there
      is one.
    cluster_column: column of the known cluster of each row of a table; '' is cluster,
      if there is one.
    split_column: column of a table that holds train and test, or 0 and 1; '' is split,
      if there is one.
    drop_columns: columns of a table that are left out.
    standardize: whether each column of [T, F] features is brought to mean 0 and
      deviation 1, by the training examples of all clients; columns of 0 and 1 stay.
    synthetic_alpha: heterogeneity of the models of the clients of 'synthetic'.
    synthetic_beta: heterogeneity of their features.
    synthetic_noise: noise in the targets of 'synthetic_linear', 'synthetic_mixture' and
      'synthetic_table', whose groups are `partition_groups`.
    synthetic_features: features of 'synthetic_table'.
    synthetic_classes: classes of 'synthetic_table'.
    synthetic_difference: what groups of 'synthetic_table' differ in: 'features'
      (measured with other offsets), 'labels' (permuted), or 'models' (of labels given
      features).
    synthetic_distance: how far groups of 'synthetic_table' differ: the length of the
      offsets, or the share of a group's own model.
    synthetic_mix: share of a client's examples in 'synthetic_table' that are of other
      groups.
  """

  leaf_users: str = ''
  background: str = 'white'
  tfds_name: str = ''
  hub_name: str = ''
  hub_client_column: str = ''
  hub_label_column: str = ''
  hub_image_side: int = 0
  image_side: int = 0
  image_groups: str = 'clients'
  hub_config: str = ''
  cifar100_labels: str = 'fine'
  emnist_split: str = 'byclass'
  text_stride: int = 1
  vocabulary: str = ''
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
