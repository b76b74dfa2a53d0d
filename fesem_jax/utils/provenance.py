"""The machine and the software of a run: device, memory, versions, commit."""

import functools
import platform
import resource
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from fesem_jax.utils import processes
from fesem_jax.utils.version import __version__

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def describe(mesh: Mesh) -> dict[str, Any]:
  """The `memory` (of this process), `device`, `versions` and `commit` of a summary."""
  stats = [device.memory_stats() or {} for device in mesh.local_devices]
  peak = max(s.get('peak_bytes_in_use', 0) for s in stats) or None
  unit = 1 if sys.platform == 'darwin' else 1024
  host = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  first = mesh.devices.flat[0]
  device = {'platform': first.platform, 'kind': first.device_kind}
  return {
    'memory': {'peak_host_bytes': host, 'peak_device_bytes': peak},
    'device': device | {'count': mesh.size, 'processes': processes.count()},
    'versions': versions(),
    'commit': commit(),
  }


@functools.cache  # The code that the process has loaded.
def versions() -> dict[str, str]:
  """The versions of Python and of the packages that results depend on."""
  python = {'python': platform.python_version(), 'fesem_jax': __version__}
  return python | {name: metadata.version(name) for name in _PACKAGES}


@functools.cache
def commit() -> str | None:
  """The commit of the source tree, with `-dirty` after changes; None elsewhere."""
  if shutil.which('git') is None:
    return None
  git = ['git', '-C', str(Path(__file__).parent), 'describe', '--always', '--dirty']
  git += ['--abbrev=40', '--exclude=*']
  return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
