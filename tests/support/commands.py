"""The binaries as a user calls them: in this process, or in one of their own.

Processes come from a server that has imported what the binaries do, since to import it
anew takes most of the time of a small command. They have its environment, that of the
first call.
"""

import contextlib
import gc
import io
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import warnings
from unittest import mock

from absl import flags
from absl.testing import flagsaver

from experiments import start
from fesem_jax import plots
from fesem_jax.core import sharding
from fesem_jax.run.spec import Spec

ROOT = pathlib.Path(__file__).parents[2]

_IMPORTED = [
  'fesem_jax', 'fesem_jax.plots', 'flax.nnx', 'matplotlib.backends.backend_agg',
  'matplotlib.backends.backend_svg', 'orbax.checkpoint', 'sklearn.datasets',
  'sklearn.metrics',
]  # fmt: skip
_processes = multiprocessing.get_context('forkserver')
_processes.set_forkserver_preload(_IMPORTED)


def call(module, *arguments, cwd, figures=False):
  """`python -m experiments.MODULE ARGUMENTS` in a folder, in this process.

  Args:
    module: of `experiments`, or a whole name.
    *arguments: of the command line.
    cwd: the folder.
    figures: whether runs write what figures need and figures of runs are drawn, a third
      of a small run's time.

  Returns:
    `subprocess.CompletedProcess` with texts.
  """
  command = _command(module, arguments)
  out, err, code = io.StringIO(), io.StringIO(), 0
  with (
    flags_of_a_new_process(),
    contextlib.chdir(cwd),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
    mock.patch.object(sys, 'argv', command),
    mock.patch.object(sharding, 'setup_devices'),  # They are chosen already.
    mock.patch.object(start, 'start', _start),
    contextlib.nullcontext() if figures else without_figures(),
    warnings.catch_warnings(),
  ):
    warnings.simplefilter('ignore')  # The module is imported already.
    try:
      runpy.run_module(command[0], run_name='__main__')
    except SystemExit as e:
      code = e.code or 0
  return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def _command(module, arguments):
  """The command line; a page is written only for tests that ask for it."""
  texts = list(map(str, arguments))
  asked = any(argument.startswith('--report_html') for argument in texts)
  if module == 'compare' and not asked:
    texts.append('--report_html=false')
  return [module if '.' in module else f'experiments.{module}', *texts]


def _start(main):
  """`start.start` without what it sets for good."""
  thresholds = gc.get_threshold()
  try:
    sys.exit(start.main_with_clear_errors(main)(start.parse_flags(sys.argv)))
  finally:
    gc.set_threshold(*thresholds)


@contextlib.contextmanager
def without_figures():
  """Runs make no portrait of their clients, and comparisons draw no figures."""
  never = property(lambda spec: False, lambda spec, texts: None)
  with (
    mock.patch.object(Spec, 'make_portrait', never),
    mock.patch.object(plots, 'draw_run'),
    mock.patch.object(plots, 'draw_comparison'),
  ):
    yield


@contextlib.contextmanager
def flags_of_a_new_process():
  """No flags but those of absl, whatever tests of this process have defined."""
  with flagsaver.flagsaver():
    saved = {name: _copy(value) for name, value in vars(flags.FLAGS).items()}
    for name in list(flags.FLAGS):
      module = flags.FLAGS.find_module_defining_flag(name) or ''
      if not module.startswith('absl'):
        delattr(flags.FLAGS, name)
    try:
      yield
    finally:
      vars(flags.FLAGS).clear()
      vars(flags.FLAGS).update(saved)


def _copy(value):
  """A copy of what absl holds, dictionaries and lists, but of no flag."""
  if isinstance(value, dict):
    return {name: _copy(one) for name, one in value.items()}
  return list(value) if isinstance(value, list) else value


def spawn(module, *arguments, cwd, timeout=600):
  """`python -m experiments.MODULE ARGUMENTS` in a folder, in a process of its own.

  Returns:
    `subprocess.CompletedProcess` with texts.
  """
  return _in_a_process(_run_module, _command(module, arguments), cwd, timeout)


def run_script(path, cwd, timeout=600):
  """`python PATH` in a folder, in a process of its own.

  Returns:
    `subprocess.CompletedProcess` with texts.
  """
  return _in_a_process(_run_path, [str(path)], cwd, timeout)


def _in_a_process(run, command, cwd, timeout):
  with tempfile.TemporaryDirectory() as folder:
    streams = [pathlib.Path(folder) / name for name in ('out', 'err')]
    # JAX reads them when it is imported, which the server does. What compiles within a
    # second is kept too.
    process = _processes.Process(target=run, args=(command, str(cwd), streams))
    kept = {
      'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.pytest_cache' / 'xla'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }
    with mock.patch.dict(os.environ, kept):
      process.start()
    process.join(timeout)
    if process.exitcode is None:
      process.kill()
      raise subprocess.TimeoutExpired(command, timeout)
    out, err = (path.read_text() for path in streams)
  return subprocess.CompletedProcess(command, process.exitcode, out, err)


def _run_module(command, cwd, streams):
  _become(command, cwd, streams)
  runpy.run_module(command[0], run_name='__main__', alter_sys=True)


def _run_path(command, cwd, streams):
  _become(command, cwd, streams)
  runpy.run_path(command[0], run_name='__main__')


def _become(command, cwd, streams):
  for number, path in enumerate(streams, 1):
    with path.open('wb') as file:
      os.dup2(file.fileno(), number)
  os.chdir(cwd)
  sys.path.insert(0, cwd)
  sys.argv = command
