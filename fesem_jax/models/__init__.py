"""Models that clients train: Flax modules, and models by their names."""

from fesem_jax.models.builders import NAMES, OF_TOKENS, build, options
from fesem_jax.models.initializers import with_pytorch_init
from fesem_jax.models.layers import Conv
from fesem_jax.models.networks import from_flax
from fesem_jax.models.porting import from_state_dict
from fesem_jax.models.starting import start_from, train_only

__all__ = [
  'NAMES',
  'OF_TOKENS',
  'Conv',
  'build',
  'from_flax',
  'from_state_dict',
  'options',
  'start_from',
  'train_only',
  'with_pytorch_init',
]
