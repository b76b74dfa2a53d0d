"""Models that clients train: Flax modules, and models by their names.

May import `core` and `utils`.
"""

from fesem_jax.models.networks import NAMES, Conv, build, from_flax

__all__ = ['NAMES', 'Conv', 'build', 'from_flax']
