"""The binaries of `experiments` in processes that may be killed.

Most are forked from this process, which has imported what they need but has not used
JAX: to import it anew takes longer than a small run. What starts processes of its own
is started as users do, and loads its plan by a `sitecustomize` of ours.
"""

import contextlib
import importlib
import json
import os
import pathlib
import random
import re
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from typing import NamedTuple

from benchmarks.torture import hooks

ROOT = pathlib.Path(__file__).parents[2]
_MOST_SECONDS = 300.0  # A process that takes longer hangs, and is ended.

_IMPORTED = (
  'fesem_jax.plots', 'fesem_jax.analysis.report', 'fesem_jax.run.simulation',
  'experiments.build', 'experiments.flags', 'flax.nnx',
  'matplotlib.backends.backend_agg',
  'matplotlib.backends.backend_svg', 'orbax.checkpoint', 'pyarrow.parquet',
  'sklearn.datasets', 'sklearn.manifold', 'sklearn.metrics',
)  # fmt: skip


class Ended(NamedTuple):
  """A process that has ended.

  Attributes:
    code: its exit code; negative for a signal.
    text: what it wrote to stdout and stderr.
    seconds: that it took.
  """

  code: int
  text: str
  seconds: float

  @property
  def tail(self) -> str:
    """The end of its text, without folders of this machine, for results."""
    return re.sub(r'(?<![\w.])/(?:[\w.@+-]+/)+', '', self.text).strip()[-800:]

  @property
  def killed(self) -> bool:
    """True if it was killed, or one of its processes."""
    return self.code in (-signal.SIGKILL, 128 + signal.SIGKILL)

  @property
  def refused(self) -> bool:
    """True if it ended with a sentence for its user."""
    return self.code == 1 and 'error: ' in self.text and 'Traceback' not in self.text


def prepare(cache: pathlib.Path) -> None:
  """Imports what children need; they compile fast, and keep programs in `cache`."""
  fast = '--xla_backend_optimization_level=0'
  os.environ |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': fast, 'TF_CPP_MIN_LOG_LEVEL': '3'}
  use_cache(cache)
  for name in _IMPORTED:
    with contextlib.suppress(ImportError):  # Some are optional.
      importlib.import_module(name)
  from fesem_jax.data import cache as data_cache

  data_cache.MIN_CACHED_BYTES = 0  # Small data are cached too.
  hooks.emit_rounds()


def use_cache(folder: pathlib.Path) -> None:
  """Children keep compiled programs and parsed data in a folder."""
  folder.mkdir(parents=True, exist_ok=True)
  os.environ['XDG_CACHE_HOME'] = str(folder)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(folder / 'xla')


def run(
  module: str,
  arguments: list[str],
  plan: hooks.Plan | None = None,
  kill_after: float | None = None,
) -> Ended:
  """`python -m experiments.MODULE ARGUMENTS`, which is killed when it is to be."""
  plan = plan or hooks.Plan()
  log = pathlib.Path(os.environ['XDG_CACHE_HOME']).parent / 'log.txt'
  began = time.monotonic()
  with log.open('w+b') as out:
    if module == 'launch_local':
      code = _started(module, arguments, plan, kill_after, out.fileno())
    else:
      code = _forked(module, arguments, plan, kill_after, out.fileno())
    out.seek(0)
    text = out.read().decode(errors='replace')
  return Ended(code, text, time.monotonic() - began)


def _forked(
  module: str,
  arguments: list[str],
  plan: hooks.Plan,
  kill_after: float | None,
  out: int,
) -> int:
  """The exit code of a process forked from this one."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of threads, which wait for work here.
    child = os.fork()
  if child:
    return _waited(child, kill_after)
  code = 70
  try:
    os.dup2(out, 1)
    os.dup2(out, 2)
    import jax

    jax.config.update(
      'jax_compilation_cache_dir', os.environ['JAX_COMPILATION_CACHE_DIR']
    )
    sys.argv = [module, *arguments]
    warnings.filterwarnings('ignore', message='.*found in sys.modules.*')
    hooks.install(plan)
    runpy.run_module(f'experiments.{module}', run_name='__main__', alter_sys=True)
    code = 0
  except SystemExit as e:
    code = e.code if isinstance(e.code, int) else int(e.code is not None)
  except BaseException:
    traceback.print_exc()
    code = 1
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _waited(child: int, kill_after: float | None) -> int:
  """The exit code of a child, which is killed after so many seconds."""
  deadline = time.monotonic() + (_MOST_SECONDS if kill_after is None else kill_after)
  while True:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
      return os.waitstatus_to_exitcode(status)
    if time.monotonic() > deadline:
      os.kill(child, signal.SIGKILL)
      _, status = os.waitpid(child, 0)
      return os.waitstatus_to_exitcode(status) if kill_after is not None else 124
    time.sleep(0.002)


def _started(
  module: str,
  arguments: list[str],
  plan: hooks.Plan,
  kill_after: float | None,
  out: int,
) -> int:
  """The exit code of a process started anew, one of whose children may be killed."""
  site = pathlib.Path(os.environ['XDG_CACHE_HOME']).parent / 'site'
  site.mkdir(exist_ok=True)
  ours = 'from benchmarks.torture import hooks\n\nhooks.install_from_environment()\n'
  (site / 'sitecustomize.py').write_text(ours)
  environment = os.environ | {'PYTHONPATH': f'{site}:{ROOT}'}
  if plan.only:
    environment[hooks.VARIABLE] = json.dumps(plan._asdict())
  command = [sys.executable, '-m', f'experiments.{module}', *arguments]
  with subprocess.Popen(
    command, env=environment, cwd=ROOT, stdout=out, stderr=out,
    stdin=subprocess.DEVNULL,
  ) as process:  # fmt: skip
    try:
      code = process.wait(_MOST_SECONDS if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
      if kill_after is None:
        process.kill()  # SIGTERM waits for the end of the round.
        process.wait()
        return 124
      children = _children(process.pid)
      if children:
        os.kill(random.choice(children), signal.SIGKILL)
      code = process.wait(_MOST_SECONDS)
  return code


def _children(pid: int) -> list[int]:
  """Processes that a process has started (Linux)."""
  listed = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(x) for x in listed.read_text().split()] if listed.exists() else []
