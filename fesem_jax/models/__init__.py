"""Models that clients train: Flax modules, and models by their names.

May import `core` and `utils`.
"""

from fesem_jax.models.builders import NAMES, OF_TOKENS, build
from fesem_jax.models.group_norm import with_group_norm
from fesem_jax.models.layers import Conv
from fesem_jax.models.networks import from_flax

__all__ = ['NAMES', 'OF_TOKENS', 'Conv', 'build', 'from_flax', 'with_group_norm']
