"""Data sets by name: `load` returns the training and the test split of all clients."""

import warnings
from typing import Any

from fesem_jax.data.client_weights import with_weights
from fesem_jax.data.loading import load, load_phases
from fesem_jax.data.partitions.value import Partition as _Partition
from fesem_jax.data.phases import Phase
from fesem_jax.data.sources import DATASETS
from fesem_jax.data.splits import (
  first_examples,
  hold_out,
  hold_out_clients,
  server_test,
)
from fesem_jax.data.true_groups import phases_with_true_groups, with_true_groups


def __getattr__(name: str) -> type[Any]:
  """The value of partitions until 0.3."""
  if name != 'Partition':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  warnings.warn(
    'data.Partition is deprecated and goes with the next release; give load(...) a '
    'value of fesem_jax.partitions, e.g. partition=fj.partitions.Rotated(groups=4).',
    DeprecationWarning,
    stacklevel=2,
  )
  return _Partition


__all__ = [
  'DATASETS',
  'Phase',
  'first_examples',
  'hold_out',
  'hold_out_clients',
  'load',
  'load_phases',
  'phases_with_true_groups',
  'server_test',
  'with_true_groups',
  'with_weights',
]
