"""Data: doors for a user's own, named data sets, and splits of clients."""

from fesem_jax.data.federation import drift, federate, load, load_phases
from fesem_jax.data.pool import Pool, from_arrays, from_frame
from fesem_jax.data.splits import (
  Phase,
  describe,
  first_examples,
  hold_out,
  hold_out_clients,
  label_counts,
  phases_with_true_groups,
  with_true_groups,
  with_weights,
)

__all__ = [
  'Phase',
  'Pool',
  'describe',
  'drift',
  'federate',
  'first_examples',
  'from_arrays',
  'from_frame',
  'hold_out',
  'hold_out_clients',
  'label_counts',
  'load',
  'load_phases',
  'phases_with_true_groups',
  'with_true_groups',
  'with_weights',
]
