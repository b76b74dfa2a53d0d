"""Partitions: the examples of each client, and their transformations.

`kinds` has a class for each, with its own arguments, and `value` what flags say. One
file a family: `rows` deals examples, `shares` says how much of a class or of all
examples a client gets, `groups` has groups of clients with labels of their own,
`rotation`, `image_corruptions` and `noise` change features.
"""

from fesem_jax.data.partitions.kinds import (
  Corrupted,
  Dirichlet,
  DirichletLabels,
  Iid,
  InClusters,
  Kind,
  LabelPermuted,
  Labels,
  LabelSwapped,
  Lognormal,
  Natural,
  Noisy,
  PowerLaw,
  Rotated,
  Rows,
  Shards,
  Unequal,
)
from fesem_jax.data.partitions.value import NAMES

__all__ = [
  'NAMES',
  'Corrupted',
  'Dirichlet',
  'DirichletLabels',
  'Iid',
  'InClusters',
  'Kind',
  'LabelPermuted',
  'LabelSwapped',
  'Labels',
  'Lognormal',
  'Natural',
  'Noisy',
  'PowerLaw',
  'Rotated',
  'Rows',
  'Shards',
  'Unequal',
]
