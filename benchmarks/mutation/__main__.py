"""Mutation testing: which small changes of the code do the tests notice?

  python -m pytest -n 2 --cov=fesem_jax --cov-context=test --cov-report= \
    --junitxml=build/junit.xml
  python -m benchmarks.mutation --sample=320 --seed=2

The first command records which test runs which line, and its seconds. The second draws
changes (`changes.py`) of the packages that compute results, and tries each in a process
of its own, forked from one that has imported JAX but none of ours. The file on disk
stays as it is. The tests of the same name run first, then all others that run the
changed statement (the function, if none does; those of the folder, if the statement
runs on import), the quickest first, until one fails. A change survives if none fails or
if `--seconds` have passed. One whose process ends, as a test hangs or crashes, does not
count as caught either: look at it by hand.
"""

import argparse
import contextlib
import functools
import pathlib
import random
import sqlite3
from typing import Any
from xml.etree import ElementTree

from benchmarks.mutation import processes
from benchmarks.mutation.changes import Mutant, mutants_of

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = (
  'algorithms', 'core', 'evaluation', 'models', 'server', 'tasks', 'training',
)  # fmt: skip


def files() -> list[str]:
  """Paths of the source files to change, below the root."""
  paths = [
    path for p in PACKAGES for path in sorted((ROOT / 'fesem_jax' / p).rglob('*.py'))
  ]
  return [path.relative_to(ROOT).as_posix() for path in paths]


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
    file = case.attrib['classname'].replace('.', '/')
    # Neither failed nor skipped, and without processes that would outlive a failure.
    if len(case) == 0 and file != 'tests/utils/processes_test':
      out[f'{file}.py::{case.attrib["name"]}'] = float(case.attrib['time'])
  return out


def stages(
  mutant: Mutant,
  lines: dict[str, dict[str, set[int]]],
  seconds: dict[str, float],
  limit: float,
) -> list[dict[str, float]]:
  """The tests of a change and their seconds: first those of the same name.

  Others follow until all of them together take `limit` seconds: those that run the
  statement, or the function if none does, and those of the same folder if it runs on
  import, which no test does.
  """
  ran = lines.get(mutant.file, {})
  path = pathlib.PurePath(mutant.file)
  folder = f'tests/{path.parts[1]}/'
  for first, last in (mutant.lines, mutant.scope):
    by_line = {t for t, at in ran.items() if any(first <= line <= last for line in at)}
    if by_line:
      break
  on_import = mutant.scope[0] in (1, mutant.lines[0])
  same = {
    t: s for t, s in seconds.items() if t.startswith(f'{folder}{path.stem}_test.py')
  }
  others, total = {}, sum(same.values())
  for s, test in sorted((s, test) for test, s in seconds.items()):
    if test in same or not (test in by_line or (on_import and test.startswith(folder))):
      continue
    total += s
    if total <= limit:
      others[test] = s
  return [stage for stage in (same, others) if stage]


def unsound(
  rows: list[dict[str, Any]], seconds: dict[str, float], workers: int
) -> set[str]:
  """Tests that caught a change and fail without it, too, in such a process."""
  catching = sorted({row['caught_by'] for row in rows} & seconds.keys())
  groups = [
    {test: seconds[test] for test in catching[i : i + 30]}
    for i in range(0, len(catching), 30)
  ]
  jobs = [functools.partial(processes.passing, group) for group in groups]
  passing = [
    test for _, passed, _ in processes.outcomes(jobs, workers) for test in passed or ()
  ]
  return set(catching) - set(passing)


def outcomes_of(
  mutants: list[Mutant], tests: list[Any], limit: float, workers: int
) -> list[dict[str, Any]]:
  """The outcome of each change, as it is printed."""
  jobs = [
    functools.partial(processes.attempt, ROOT, mutant, of_mutant, limit)
    for mutant, of_mutant in zip(mutants, tests, strict=True)
  ]
  rows = []
  for number, result, took in processes.outcomes(jobs, workers):
    mutant = mutants[number]
    verdict = 'ENDED'
    if result:
      verdict = 'caught' if result['caught_by'] else 'SURVIVED'
    result = result or {'caught_by': None, 'tests': None}
    rows.append(mutant._asdict() | result | {'seconds': round(took, 1)})
    print(
      f'{len(rows)}/{len(jobs)} {verdict} {took:.0f} s '
      f'{mutant.file}:{mutant.lines[0]} {mutant.before} -> {mutant.after} '
      f'[{result["caught_by"]}]',
      flush=True,
    )
  return rows


def main() -> None:
  """Tries a sample of changes and saves their outcomes."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--sample', type=int, default=320, help='changes to try')
  parser.add_argument('--seed', type=int, default=2, help='decides which')
  parser.add_argument('--only', default='', help='start of the paths to change')
  parser.add_argument('--seconds', type=float, default=100, help='tests of a change')
  parser.add_argument('--workers', type=int, default=2, help='processes at a time')
  parser.add_argument('--coverage', default='.coverage', help='file of pytest-cov')
  parser.add_argument('--junit', default='build/junit.xml', help='of pytest --junitxml')
  args = parser.parse_args()
  chosen = [file for file in files() if file.startswith(args.only)]
  possible = [mutant for file in chosen for mutant in mutants_of(ROOT, file)]
  count = min(args.sample, len(possible))
  waiting = random.Random(args.seed).sample(possible, count)
  lines = lines_of_tests(pathlib.Path(args.coverage))
  seconds = seconds_of_tests(pathlib.Path(args.junit))
  processes.import_others()
  rows: list[dict[str, Any]] = []
  while waiting:
    tests = [stages(m, lines, seconds, args.seconds) for m in waiting]
    rows += outcomes_of(waiting, tests, args.seconds, args.workers)
    wrong = unsound(rows, seconds, args.workers)
    seconds = {test: s for test, s in seconds.items() if test not in wrong}
    again = [row for row in rows if row['caught_by'] in wrong]
    rows = [row for row in rows if row['caught_by'] not in wrong]
    numbers = {(row['file'], row['number']) for row in again}
    waiting = [m for m in waiting if (m.file, m.number) in numbers]
    print(f'{len(wrong)} tests fail without a change; {len(waiting)} changes again.')
  caught = sum(bool(row['caught_by']) for row in rows)
  print(f'{caught} of {len(rows)} caught, of {len(possible)} possible changes.')
  from benchmarks import common  # It imports files that may be changed.
  from fesem_jax.core import sharding

  common.save('mutation', sharding.client_mesh(), rows)


if __name__ == '__main__':
  main()
