"""Mutation testing: which small changes of the code do the tests notice?

  python -m pytest -n 2 --cov=fesem_jax --cov-context=test --cov-report= \
    --junitxml=build/junit.xml
  python -m benchmarks.mutation --sample=320 --seed=2

The first command records which test runs which line, and its seconds. The second draws
changes (`changes.py`) of the packages that compute results, and tries each in a process
of its own, forked from one that has imported JAX but none of ours. The file on disk
stays as it is. The tests of the same name run first, then all others that run the
changed statement (the function, if none does), the quickest first, until one fails. A
change survives if none fails or if `--seconds` have passed.
"""

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from absl import app, flags

from benchmarks.mutation.changes import Mutant, changed, mutants_of

_SAMPLE = flags.DEFINE_integer('sample', 320, 'Changes to try.')
_SEED = flags.DEFINE_integer('seed', 2, 'Decides which.')
_SECONDS = flags.DEFINE_float('seconds', 150, 'Seconds of tests for a change.')
_WORKERS = flags.DEFINE_integer('workers', 2, 'Processes at a time.')
_COVERAGE = flags.DEFINE_string('coverage', '.coverage', 'File of pytest-cov.')
_JUNIT = flags.DEFINE_string('junit', 'build/junit.xml', 'File of pytest --junitxml.')

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = (
  'aggregation', 'algorithms', 'clustering', 'cohorts', 'core', 'evaluation', 'models',
  'tasks', 'training',
)  # fmt: skip


def files() -> list[str]:
  """Paths of the source files to change, below the root."""
  found = [
    path for p in PACKAGES for path in sorted((ROOT / 'fesem_jax' / p).rglob('*.py'))
  ]
  return [path.relative_to(ROOT).as_posix() for path in found]


def lines_of_tests(path: pathlib.Path) -> dict[str, dict[str, set[int]]]:
  """File -> test -> the lines that it runs, of a file of pytest-cov."""
  out: dict[str, dict[str, set[int]]] = {}
  with contextlib.closing(sqlite3.connect(path)) as db:
    rows = db.execute(
      'SELECT file.path, context.context, line_bits.numbits FROM line_bits '
      'JOIN file ON file.id = file_id JOIN context ON context.id = context_id'
    )
    for file, context, bits in rows:
      test = context.rpartition('|')[0]
      if test:
        name = 'fesem_jax/' + file.rpartition('/fesem_jax/')[2]
        lines = out.setdefault(name, {}).setdefault(test, set())
        lines.update(
          8 * i + j for i, x in enumerate(bits) for j in range(8) if x >> j & 1
        )
  return out


def seconds_of_tests(path: pathlib.Path) -> dict[str, float]:
  """Test -> its seconds, for the tests that pass, of a file of pytest --junitxml."""
  out = {}
  for case in ElementTree.parse(path).iter('testcase'):
    if len(case) == 0:  # Neither failed nor skipped.
      file = case.attrib['classname'].replace('.', '/')
      out[f'{file}.py::{case.attrib["name"]}'] = float(case.attrib['time'])
  return out


def stages(
  mutant: Mutant, lines: dict[str, dict[str, set[int]]], seconds: dict[str, float]
) -> list[dict[str, float]]:
  """The tests of a change and their seconds: first those of the same name."""
  ran = lines.get(mutant.file, {})
  own = pathlib.PurePath(mutant.file)
  mirrored = f'tests/{own.parts[1]}/{own.stem}_test.py'
  for first, last in (mutant.lines, mutant.scope):
    found = sorted(
      (seconds[test], test)
      for test, at in ran.items()
      if test in seconds and any(first <= line <= last for line in at)
    )
    if found:
      break
  same = {t: s for s, t in found if t.startswith(f'{mirrored}::')}
  others, total = {}, 0.0
  for s, test in found:
    total += s
    if test not in same and total <= _SECONDS.value:
      others[test] = s
  return [stage for stage in (same, others) if stage]


class _FirstFailure:
  """A plugin of pytest that runs chosen tests in order and notes the first failure."""

  def __init__(self, chosen: dict[str, float], until: float):
    self._order = {test: i for i, test in enumerate(chosen)}
    self._chosen, self._until = chosen, until
    self.caught_by: str | None = None
    self.tests = 0

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
      self.caught_by = f'importing {report.nodeid}'

  def pytest_runtest_logreport(self, report: Any) -> None:
    """Notes a failure."""
    self.tests += report.when == 'call'
    if report.failed:
      self.caught_by = report.nodeid


class _Mutated(importlib.machinery.SourceFileLoader):
  """Finds and loads one module, from a changed syntax tree."""

  def __init__(self, mutant: Mutant):
    name = mutant.file.removesuffix('.py').replace('/', '.').removesuffix('.__init__')
    super().__init__(name, str(ROOT / mutant.file))
    self._mutant = mutant

  def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
    """The specification of the changed module; None for all others."""
    del path, target
    if fullname != self.name:
      return None
    package = [str(pathlib.Path(self.path).parent)]
    found = package if self.path.endswith('__init__.py') else None
    return importlib.util.spec_from_file_location(
      fullname, self.path, loader=self, submodule_search_locations=found
    )

  def get_code(self, fullname: str) -> Any:
    """The code of the changed module."""
    del fullname
    return compile(changed(ROOT, self._mutant), self.path, 'exec')


def attempt(mutant: Mutant, tests: list[dict[str, float]]) -> dict[str, Any]:
  """Runs the tests of a change in this process: how many, and which one fails."""
  sys.meta_path.insert(0, cast(Any, _Mutated(mutant)))
  until, ran = time.perf_counter() + 2 * _SECONDS.value, 0
  for stage in tests:
    plugin = _FirstFailure(stage, until)
    paths = sorted({test.partition('::')[0] for test in stage})
    options = ['-x', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-p', 'no:cov']
    code = int(pytest.main([*options, *paths], plugins=[plugin]))
    ran += plugin.tests
    if plugin.caught_by or code not in (0, 2, 5):
      return {'caught_by': plugin.caught_by or f'exit {code}', 'tests': ran}
  return {'caught_by': None, 'tests': ran}


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


def outcomes(jobs: Sequence[Callable[[], Any]]) -> Iterator[tuple[int, Any, float]]:
  """Number, result (None if the process died) and seconds of each job, as they end."""
  waiting = list(enumerate(jobs))[::-1]
  running: dict[int, tuple[int, float]] = {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    while waiting or running:
      while waiting and len(running) < _WORKERS.value:
        number, job = waiting.pop()
        running[_fork(job, folder)] = number, time.perf_counter()
      pid, _ = os.wait()
      number, began = running.pop(pid)
      path = folder / f'{pid}.json'
      result = json.loads(path.read_text()) if path.exists() else None
      yield number, result, time.perf_counter() - began


def _import_others() -> None:
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


def main(argv: list[str]) -> None:
  """Tries a sample of changes and saves their outcomes."""
  del argv
  possible = [mutant for file in files() for mutant in mutants_of(ROOT, file)]
  chosen = random.Random(_SEED.value).sample(possible, _SAMPLE.value)
  lines = lines_of_tests(pathlib.Path(_COVERAGE.value))
  seconds = seconds_of_tests(pathlib.Path(_JUNIT.value))
  _import_others()
  jobs = [functools.partial(attempt, m, stages(m, lines, seconds)) for m in chosen]
  rows = []
  for number, result, took in outcomes(jobs):
    result = result or {'caught_by': 'the end of its process', 'tests': None}
    rows.append(chosen[number]._asdict() | result | {'seconds': round(took, 1)})
    mutant = chosen[number]
    print(
      f'{len(rows)}/{len(jobs)} {"caught" if result["caught_by"] else "SURVIVED"} '
      f'{took:.0f} s {mutant.file}:{mutant.lines[0]} {mutant.before} -> {mutant.after} '
      f'[{result["caught_by"]}]',
      flush=True,
    )
  survivors = [row for row in rows if not row['caught_by']]
  caught = len(rows) - len(survivors)
  print(f'{caught} of {len(rows)} caught, of {len(possible)} possible changes.')
  from benchmarks import common  # It imports files that may be changed.
  from fesem_jax.core import sharding

  common.save('mutation', sharding.client_mesh(), rows)


if __name__ == '__main__':
  app.run(main)
