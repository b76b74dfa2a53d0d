"""Files, processes, terminals and errors: nothing about federated learning.

May import nothing else of `fesem_jax`.
"""
