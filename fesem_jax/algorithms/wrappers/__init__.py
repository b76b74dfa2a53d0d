"""Remedies for methods with centers, beyond their papers; each wraps a method.

with_reclustering(fesem(local, num_clusters=4), every=5)
"""

from fesem_jax.algorithms.wrappers.client_memory import with_client_memory
from fesem_jax.algorithms.wrappers.reclustering import with_reclustering

__all__ = ['with_client_memory', 'with_reclustering']
