"""Data sets by name: `load` returns the training and the test split of all clients."""

from fesem_jax.data.client_weights import with_weights
from fesem_jax.data.description import describe
from fesem_jax.data.loading import load, load_phases
from fesem_jax.data.phases import Phase
from fesem_jax.data.sources import DATASETS
from fesem_jax.data.splits import (
  first_examples,
  hold_out,
  hold_out_clients,
  server_test,
)
from fesem_jax.data.true_groups import phases_with_true_groups, with_true_groups

__all__ = [
  'DATASETS',
  'Phase',
  'describe',
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
