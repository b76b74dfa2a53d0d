"""Errors of devices, in sentences."""

import os

import jax

from fesem_jax.utils.safe_files import first_line


def out_of_memory(e: BaseException) -> str:
  """A sentence on a device whose memory has ended, and what helps."""
  held = os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE', 'true') != 'false'
  gpu = jax.default_backend() == 'gpu'
  others = ' `nvidia-smi` lists other processes that hold its memory.' if gpu else ''
  share = ' XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 gives JAX more of it.' if gpu else ''
  return (
    f'Not enough memory: {first_line(e)} Train fewer clients side by side '
    '(--clients_per_chunk), keep their models in the memory of the host '
    f'(--client_state=offloaded), or choose a smaller model.{others}{share * held}'
  )
