"""The devices that JAX finds, and what keeps it from a GPU that is there."""

import importlib.metadata
import os
import pathlib

import jax

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.safe_files import first_line

# The driver of an NVIDIA GPU makes the first, the kernel of a container the second.
_DRIVER = pathlib.Path('/proc/driver/nvidia/version')
_GPU = pathlib.Path('/dev/nvidia0')

_INSTALL = "pip install 'fesem_jax[cuda]'"


def devices() -> list[jax.Device]:
  """`jax.devices()`; warns once where JAX runs on the CPU beside an NVIDIA GPU.

  Raises:
    UserError: if the platforms of JAX_PLATFORMS cannot be used.
  """
  platforms = jax.config.values.get('jax_platforms')
  try:
    all_devices = jax.devices()
  # JAX asserts that it has the plugin.
  except (RuntimeError, AssertionError) as e:
    wanted = {'cuda', 'gpu'} & set((platforms or '').split(','))
    raise UserError(
      f'JAX_PLATFORMS={platforms}: JAX cannot use it ({first_line(e)}). '
      f'{_reason() if wanted else "Choose a platform of this machine."} Without '
      'JAX_PLATFORMS, JAX takes what it finds.'
    ) from e
  is_there = _DRIVER.exists() or _GPU.exists() or _plugin()
  if not platforms and all_devices[0].platform == 'cpu' and is_there:
    warn_once(f'JAX runs on the CPU. {_reason()}')
  return all_devices


def _reason() -> str:
  """Why JAX does not use an NVIDIA GPU, and what helps."""
  plugin = _plugin()
  if plugin is None:
    return f'For an NVIDIA GPU: {_INSTALL}.'
  name, version = plugin
  if not (_DRIVER.exists() or _GPU.exists()):
    return (
      f'{name} is installed, but this machine shows no NVIDIA GPU or driver: '
      '`nvidia-smi` must list one (in a container, start it with GPUs).'
    )
  jaxlib = importlib.metadata.version('jaxlib')
  if version.split('.')[:2] != jaxlib.split('.')[:2]:
    return f'{name} {version} does not fit jaxlib {jaxlib}: {_INSTALL}.'
  return (
    f'{name} {version} did not start: `nvidia-smi` must list the GPU, with a driver '
    'that is new enough for its CUDA; JAX has logged the cause.'
  )


def _plugin() -> tuple[str, str] | None:
  """Name and version of JAX's plugin for CUDA; None if it is not installed."""
  for name in ('jax-cuda13-plugin', 'jax-cuda12-plugin'):
    try:
      return name, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return None


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
