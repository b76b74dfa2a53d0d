"""The binaries as a user runs them, in processes of their own.

They come from a server that has imported what the binaries do, since to import it anew
takes most of the time of a small command. They have its environment, that of the first
call.
"""

import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(__file__).parents[2]

_IMPORTED = [
  'fesem_jax',
  'fesem_jax.plots',
  'flax.nnx',
  'matplotlib.backends.backend_agg',
  'matplotlib.backends.backend_svg',
  'orbax.checkpoint',
  'sklearn.datasets',
  'sklearn.metrics',
]
_processes = multiprocessing.get_context('forkserver')
_processes.set_forkserver_preload(_IMPORTED)


def call(module, *arguments, cwd, timeout=600):
  """`python -m experiments.MODULE ARGUMENTS` in a folder.

  Returns:
    `subprocess.CompletedProcess` with texts.
  """
  with tempfile.TemporaryDirectory() as folder:
    said = [pathlib.Path(folder) / name for name in ('out', 'err')]
    command = [f'experiments.{module}', *map(str, arguments)]
    process = _processes.Process(target=_run, args=(command, str(cwd), said))
    # JAX reads it when it is imported, which the server does.
    cache = {'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.pytest_cache' / 'xla')}
    with mock.patch.dict(os.environ, cache):
      process.start()
    process.join(timeout)
    if process.exitcode is None:
      process.kill()
      raise subprocess.TimeoutExpired(command, timeout)
    out, err = (path.read_text() for path in said)
  return subprocess.CompletedProcess(command, process.exitcode, out, err)


def _run(command, cwd, said):
  for number, path in enumerate(said, 1):
    with path.open('wb') as file:
      os.dup2(file.fileno(), number)
  os.chdir(cwd)
  sys.path.insert(0, cwd)
  sys.argv = command
  runpy.run_module(command[0], run_name='__main__', alter_sys=True)
