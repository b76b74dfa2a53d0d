"""Processes that run tests against a changed module."""

import importlib
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import pytest

from benchmarks.mutation.changes import Mutant, changed


class _Chosen:
  """A plugin of pytest that runs chosen tests in order and notes how they end."""

  def __init__(self, chosen: dict[str, float], until: float = math.inf):
    self._order = {test: i for i, test in enumerate(chosen)}
    self._chosen, self._until = chosen, until
    self.passed: list[str] = []
    self.failed: list[str] = []

  def pytest_collection_modifyitems(self, items: list[Any]) -> None:
    """Keeps the chosen tests, the quickest first."""
    import jax

    # Programs of a changed file are of no use to the next one.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 1e9)
    items[:] = [item for item in items if item.nodeid in self._order]
    items.sort(key=lambda item: self._order[item.nodeid])

  def pytest_runtest_setup(self, item: Any) -> None:
    """Ends the process if the test hangs, and the session if its time is up."""
    signal.alarm(int(60 + 10 * self._chosen[item.nodeid]))
    if time.perf_counter() > self._until:
      item.session.shouldstop = 'The time is up.'

  def pytest_collectreport(self, report: Any) -> None:
    """Notes a file of tests that cannot be imported."""
    if report.failed:
      self.failed.append(f'importing {report.nodeid}')

  def pytest_runtest_logreport(self, report: Any) -> None:
    """Notes the end of a test."""
    if report.failed:
      self.failed.append(report.nodeid)
    elif report.when == 'call' and report.passed:
      self.passed.append(report.nodeid)


class _Mutated(importlib.machinery.SourceFileLoader):
  """Finds and loads one module, from a changed syntax tree."""

  def __init__(self, root: pathlib.Path, mutant: Mutant):
    name = mutant.file.removesuffix('.py').replace('/', '.').removesuffix('.__init__')
    super().__init__(name, str(root / mutant.file))
    self._root, self._mutant = root, mutant

  def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
    """The specification of the changed module; None for all others."""
    del path, target
    if fullname != self.name:
      return None
    package = [str(pathlib.Path(self.path).parent)]
    locations = package if self.path.endswith('__init__.py') else None
    return importlib.util.spec_from_file_location(
      fullname, self.path, loader=self, submodule_search_locations=locations
    )

  def get_code(self, fullname: str) -> Any:
    """The code of the changed module."""
    del fullname
    return compile(changed(self._root, self._mutant), self.path, 'exec')


def attempt(
  root: pathlib.Path, mutant: Mutant, tests: list[dict[str, float]], limit: float
) -> dict[str, Any]:
  """Runs the tests of a change in this process: how many, and which one fails."""
  sys.meta_path.insert(0, cast(Any, _Mutated(root, mutant)))
  until, ran = time.perf_counter() + 2 * limit, 0
  for stage in tests:
    plugin = _Chosen(stage, until)
    _pytest(stage, plugin, '-x')
    ran += len(plugin.passed) + len(plugin.failed)
    if plugin.failed:
      return {'caught_by': plugin.failed[0], 'tests': ran}
  return {'caught_by': None, 'tests': ran}


def passing(tests: dict[str, float]) -> list[str]:
  """Tests that pass without a change, in this process."""
  plugin = _Chosen(tests)
  _pytest(tests, plugin)
  return plugin.passed


def _pytest(tests: Iterable[str], plugin: _Chosen, *options: str) -> None:
  """Runs the files of some tests in this process."""
  paths = sorted({test.partition('::')[0] for test in tests})
  plain = ['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-p', 'no:cov']
  code = pytest.main([*options, *plain, *paths], plugins=[plugin])
  if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
    raise RuntimeError(f'pytest ended with {code!r}.')


def _fork(work: Callable[[], Any], folder: pathlib.Path) -> int:
  """Starts a process that writes what `work` returns to FOLDER/PID.json."""
  if pid := os.fork():
    return pid
  code = 1
  try:
    log = os.open(folder / f'{os.getpid()}.log', os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    result = json.dumps(work())
    (folder / f'{os.getpid()}.json').write_text(result)
    code = 0
  finally:
    os._exit(code)


def outcomes(
  jobs: Sequence[Callable[[], Any]], workers: int
) -> Iterator[tuple[int, Any, float]]:
  """Number, result (None if the process died) and seconds of each job, as they end."""
  waiting = list(enumerate(jobs))[::-1]
  running: dict[int, tuple[int, float]] = {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    while waiting or running:
      while waiting and len(running) < workers:
        number, job = waiting.pop()
        running[_fork(job, folder)] = number, time.perf_counter()
      pid, _ = os.wait()
      number, began = running.pop(pid)
      path = folder / f'{pid}.json'
      result = json.loads(path.read_text()) if path.exists() else None
      yield number, result, time.perf_counter() - began


def import_others() -> None:
  """Imports what tests need but no file that may be changed, and starts no backend."""
  os.environ['HYPOTHESIS_STORAGE_DIRECTORY'] = tempfile.mkdtemp()
  os.environ['PYTHONDONTWRITEBYTECODE'] = '1'
  for name in (
    'flax.linen', 'jax.experimental.pallas', 'optax', 'orbax.checkpoint', 'scipy.stats',
    'sklearn.cluster', 'sklearn.metrics',
  ):  # fmt: skip
    importlib.import_module(name)
  if any(name.partition('.')[0] == 'fesem_jax' for name in sys.modules):
    raise RuntimeError('fesem_jax is imported: changes would not reach the tests.')
