"""The machine and the software of a run: device, memory, versions, commit."""

import functools
import pathlib
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

from jax.sharding import Mesh

from fesem_jax.utils import processes
from fesem_jax.utils.version import __version__

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def describe(mesh: Mesh) -> dict[str, Any]:
  """The `memory` (of this process), `device`, `versions` and `commit` of a summary."""
  device = mesh.devices.flat[0]
  stats = [d.memory_stats() or {} for d in mesh.local_devices]
  peaks = [s['peak_bytes_in_use'] for s in stats if 'peak_bytes_in_use' in s]
  return {
    'memory': {
      'peak_host_bytes': peak_host_bytes(),
      'peak_device_bytes': max(peaks) if peaks else None,
    },
    'device': {
      'platform': device.platform,
      'kind': device.device_kind,
      'count': mesh.size,
      'processes': processes.count(),
    },
    'versions': versions(),
    'commit': commit(),
  }


def peak_host_bytes() -> int | None:
  """The peak resident memory of this process, in bytes; None where it is not known."""
  try:
    import resource  # Not on Windows.
  except ImportError:
    return None
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else 1024 * peak


def processor() -> str:
  """Name of the CPU."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    return next(x.split(':')[1].strip() for x in lines if x.startswith('model name'))
  except (OSError, StopIteration):
    return platform.processor()


def versions() -> dict[str, str | None]:
  """The versions of Python and of the packages that results depend on."""
  python = {'python': sys.version.split()[0], 'fesem_jax': __version__}
  return {**python, **{name: _version(name) for name in _PACKAGES}}


@functools.cache  # The code that the process has loaded.
def _version(name: str) -> str | None:
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return None


@functools.cache
def commit() -> str | None:
  """The commit of the source tree, or None outside a checkout.

  It ends in `-dirty` if files were changed since the commit.
  """
  folder = pathlib.Path(__file__).parent
  name = ['describe', '--always', '--dirty', '--abbrev=40', '--exclude=*']
  try:
    done = subprocess.run(
      ['git', '-C', str(folder), *name], capture_output=True, text=True, check=True
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()
