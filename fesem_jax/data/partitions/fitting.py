"""Checks that a partition makes sense for some examples."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fesem_jax.data.partitions.groups import check_groups
from fesem_jax.data.partitions.kinds import OF
from fesem_jax.data.partitions.value import BY_LABEL, NAMES, Partition
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError, argument


def check_fits(partition: Partition, pool: Pool, name: str) -> None:
  """Raises `UserError` on a partition that makes no sense for these examples.

  The name of the partition is known; `name` is that of the data set.
  """
  named, wanted = argument('name', name), argument('partition', partition.name)
  if partition.name == 'natural' and (pool.client is None or pool.of_clusters):
    others = ', '.join(n for n in NAMES if n != 'natural')
    raise UserError(
      f'{wanted}: {named} has no natural clients; choose one of {others}.'
    )
  if partition.min_examples and partition.name != 'natural':
    raise UserError(
      f'`min_examples` chooses natural clients; it does not apply to {wanted}.'
    )
  if partition.name in ('natural', 'rows'):
    return
  by_label = [part for part in partition.parts if part in BY_LABEL]
  if by_label and pool.task != CLASSIFICATION.name:
    raise UserError(
      f'{wanted} deals or changes examples by their labels, but {named} is for '
      f'{pool.task}; choose another partition.'
    )
  _check_features(partition, pool, named)
  if partition.in_clusters:
    _check_clusters(partition, pool, named)
  if partition.grouping:
    check_groups(partition.count, partition.num_groups)
  few = partition.dealing in ('labels', 'power_law')
  if few and partition.labels_per_client > len(occur := np.unique(pool.y)):
    raise UserError(
      f'`labels_per_client={partition.labels_per_client}` is more than the '
      f'{len(occur)} labels of the training examples of {named}; lower it.'
    )
  # Groups that each hold all examples have as many copies of them.
  copied = partition.grouping and not partition.disjoint_groups
  copies = partition.num_groups if copied else 1
  for option in ('num_clients', 'classes_per_client'):
    value = getattr(partition, option)
    if option == 'num_clients':
      value = partition.count
    if value > len(pool.y) * copies:
      raise UserError(
        f'`{option}={value}` is more than the {len(pool.y)} training examples there '
        'are to deal; lower it.'
      )


def check_used(partition: Partition, others: Sequence[str] = ()) -> None:
  """Raises `UserError` on a field that only other partitions use.

  The name of the partition is known; `others` are fields that the data set uses.
  """
  for field in dataclasses.fields(partition):
    value = getattr(partition, field.name)
    names = OF.get(field.name, partition.parts)
    if field.name in others or set(names) & set(partition.parts):
      continue
    if isinstance(value, np.ndarray) or value != field.default:
      shown = value if isinstance(value, str | int | float) else '...'
      raise UserError(
        f'{argument(field.name, shown)} has no effect under '
        f'{argument("partition", partition.name)}: it is for {", ".join(names)}. Leave '
        'it out, or choose one of these.'
      )


def _check_clusters(partition: Partition, pool: Pool, named: str) -> None:
  """Raises `UserError` unless clusters are known, and each has a client."""
  wanted = argument('partition', partition.name)
  if pool.clusters is None:
    raise UserError(
      f'{wanted} deals inside of known clusters, which {named} lacks; give the array '
      'cluster, or form groups, e.g. by `partition=label_permuted`.'
    )
  if partition.count < (count := len(np.unique(pool.clusters))):
    raise UserError(
      f'`num_clients={partition.count}` is less than the {count} clusters of {named}; '
      'every cluster needs a client.'
    )


def _check_features(partition: Partition, pool: Pool, named: str) -> None:
  """Raises `UserError` on examples that the partition cannot change."""
  wanted = argument('partition', partition.name)
  shape = pool.x.shape[1:]
  if partition.grouping in ('rotated', 'corrupted') and len(shape) < 2:
    raise UserError(f'{wanted} needs images, which {named} does not hold.')
  if partition.grouping == 'rotated' and shape[0] != shape[1]:
    raise UserError(
      f'{wanted} needs square images; those of {named} are {shape[0]} by {shape[1]}.'
    )
