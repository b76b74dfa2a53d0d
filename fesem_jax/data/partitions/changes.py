"""Transformations of the examples of clients."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.partitions import groups, image_corruptions
from fesem_jax.data.partitions.rotation import rotate
from fesem_jax.data.partitions.value import Partition
from fesem_jax.utils.stored_rows import read

# (x [T, ...], client of each row [T], ascending, 0 training or 1 test) -> x [T, ...].
OfFeatures = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
# (y [T], client of each row [T]) -> y [T].
OfLabels = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Change(NamedTuple):
  """Changes of a partition to examples; None leaves them."""

  features: OfFeatures | None = None  # may write to the array that it is given
  labels: OfLabels | None = None


def names_of_groups(partition: Partition) -> tuple[str, ...] | None:
  """Names of groups 0, 1, ..., k-1; None without groups."""
  if partition.grouping == 'rotated':
    return tuple(f'{degrees:.4g} degrees' for degrees in partition.degrees)
  if partition.grouping == 'corrupted':
    return tuple(name.replace('_', ' ') for name in partition.corruptions)
  if partition.grouping == 'label_swapped':
    swapped = (f'labels {a} and {b} swapped' for a, b in partition.swaps)
    return ('original labels', *swapped)
  if partition.grouping == 'label_permuted':
    others = range(1, partition.num_groups)
    return ('original labels', *(f'permuted labels {group}' for group in others))
  return None


def groups_over_rounds(
  partition: Partition, seed: int
) -> tuple[tuple[int, np.ndarray], ...]:
  """(first round, [M] group of each client from it on), from round 1.

  `seed` decides the groups from the first of `drift_rounds` on.
  """
  first = partition.groups_of_clients() * (partition.drift_start == 'groups')
  assignments = [(1, first)]
  for i, number in enumerate(partition.drift_rounds):
    rng = prng_streams.host_rng(seed, prng_streams.DRIFT, i)
    assignments.append((number, rng.integers(0, partition.num_groups, partition.count)))
  return tuple(assignments)


def of_partition(
  partition: Partition,
  of_clients: np.ndarray,
  num_classes: int,
  occur: np.ndarray,
  scale: float,
  seed: int,
) -> Change | None:
  """Changes of a partition to the examples; None if they stay as they are.

  The partition is any but 'natural'; `of_clients` [M] is the group of each client,
  `occur` the classes that have training examples, `scale` that of the `Pool`, and
  `seed` decides everything random. Raises `UserError` if there are too few classes.
  """
  kind = partition.grouping
  if kind in ('label_permuted', 'label_swapped'):
    if kind == 'label_permuted':
      rng = prng_streams.host_rng(seed, prng_streams.RELABEL)
      table = groups.label_permutations(rng, partition.num_groups, num_classes, occur)
    else:
      table = groups.label_swaps(partition.swaps, num_classes, occur)

    def relabeled(y: np.ndarray, client: np.ndarray) -> np.ndarray:
      return table[of_clients[client], y]

    return Change(labels=relabeled)
  if kind == 'rotated':

    def turned(x: np.ndarray, group: int, split: int) -> np.ndarray:
      return rotate(x, partition.degrees[group], partition.rotation_sampling)

    return Change(functools.partial(_by_group, of_clients, turned))
  if kind == 'corrupted':

    def corrupted(x: np.ndarray, group: int, split: int) -> np.ndarray:
      rng = prng_streams.host_rng(seed, prng_streams.CORRUPT_IMAGES, 2 * group + split)
      name, strength = partition.corruptions[group], partition.corruption_strength
      return image_corruptions.corrupted(x, name, strength, scale, rng)

    return Change(functools.partial(_by_group, of_clients, corrupted))
  return None


def _by_group(
  of_clients: np.ndarray,
  change: Callable[[np.ndarray, int, int], np.ndarray],
  x: np.ndarray,
  client: np.ndarray,
  split: int,
) -> np.ndarray:
  """Changes the rows of each group, given the group of each client [M]."""
  group_of_row = of_clients[client]
  for group in np.unique(of_clients):
    mine = group_of_row == group
    x[mine] = change(x[mine], int(group), split)
  return x


def with_noise(
  partition: Partition, data: FederatedData, split: int, seed: int
) -> FederatedData:
  """Adds Gaussian noise of variance i / M times `noise_variance` for client i of 1..M.

  NIID-Bench's noise-based feature imbalance (Li et al. 2022, Section IV-B); its code
  takes the number for the standard deviation and counts clients from 0. The noise is
  on what models see, `x * scale`, and is not clipped, so that bytes become float32.
  `split` is 0 for training and 1 for test; columns are standardized before.
  """
  x = np.array(read(data.x), np.float32)
  offsets = np.asarray(data.offsets)
  for i, (first, last) in enumerate(itertools.pairwise(offsets)):
    rng = prng_streams.host_rng(seed, prng_streams.FEATURE_NOISE, 2 * i + split)
    mine = x[first:last]
    variance = partition.noise_variance * (i + 1) / data.num_clients
    deviation = np.float32(np.sqrt(variance) / data.scale)
    mine += deviation * rng.standard_normal(mine.shape, np.float32)
  return dataclasses.replace(data, x=x)
