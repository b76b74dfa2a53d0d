"""Partitions: the examples of each client, and their transformations.

One file a family: `rows` deals examples, `shares` says how much of a class or of all
examples a client gets, `groups` has groups of clients with labels of their own,
`rotation`, `image_corruptions` and `noise` change features.
"""

from fesem_jax.data.partitions.value import NAMES, Partition

__all__ = ['NAMES', 'Partition']
