"""Clients dealt inside of clusters that are known, such as hospitals or languages."""

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.data.partitions import dealers
from fesem_jax.data.partitions import rows as rows_of
from fesem_jax.data.partitions.groups import groups_of_clients
from fesem_jax.data.partitions.rows import Rows
from fesem_jax.data.partitions.value import Partition
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError


def deal(
  pool: Pool, partition: Partition, seed: int, need: int
) -> tuple[Rows, Rows, np.ndarray]:
  """Row numbers of each client's training and test examples, and its cluster [M].

  Client i is of cluster i mod K; the examples of a cluster are dealt to its clients by
  the partition's rule, whatever clients they had. `need` are the rows of each client,
  or where sizes differ on average; 0 deals all. Raises `UserError` if a cluster has too
  few examples for its clients.
  """
  assert pool.clusters is not None
  assert pool.client is not None
  rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
  values, of_source = np.unique(pool.clusters, return_inverse=True)
  of_clients = groups_of_clients(partition.count, len(values))
  labels = _labels(pool, pool.y)
  test_labels = None if pool.test_y is None else _labels(pool, pool.test_y)
  least = 2 if test_labels is None else 1
  train: Rows = [np.zeros(0, int)] * partition.count
  test: Rows = list(train)
  for cluster in range(len(values)):
    members = np.flatnonzero(of_clients == cluster)
    own = rng.permutation(np.flatnonzero(of_source[pool.client] == cluster))
    if max(need, least) * len(members) > len(own):
      raise UserError(
        f'Cluster {_name(pool, values[cluster])} has {len(own)} training examples for '
        f'{len(members)} clients of at least {max(need, least)}; lower '
        '`examples_per_client` or `num_clients`.'
      )
    own = own[: need * len(members) or None]
    of_own = labels[own]
    rule = dealers.dealer(rng, partition, of_own, pool.num_classes, len(members))
    for member, rows in zip(members, rule(of_own, least), strict=True):
      train[member] = own[rows]
    if test_labels is not None:
      assert pool.test_client is not None
      own = rng.permutation(np.flatnonzero(of_source[pool.test_client] == cluster))
      for member, rows in zip(members, rule(test_labels[own], 0), strict=True):
        test[member] = own[rows]
  if test_labels is None:
    divide = prng_streams.host_rng(seed, prng_streams.SPLIT)
    pairs = [rows_of.split(divide, rows) for rows in train]
    train, test = [a for a, _ in pairs], [b for _, b in pairs]
  return train, test, values[of_clients]


def _labels(pool: Pool, y: np.ndarray) -> np.ndarray:
  """Labels [T]; all are 0 where targets are no classes."""
  return y if pool.task == CLASSIFICATION.name else np.zeros(len(y), np.int32)


def _name(pool: Pool, cluster: object) -> object:
  """The name of a cluster, which is a number or a name."""
  if pool.cluster_names is not None and isinstance(cluster, int | np.integer):
    return pool.cluster_names[cluster]
  return cluster
