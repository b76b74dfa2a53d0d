r"""Faults that the project has had, put back one at a time: do the tests notice them?

  python -m benchmarks.faults                # all of them
  python -m benchmarks.faults --only=kmeans  # those with this text in their lines

`faults.txt` has two lines for each: what was wrong, with a test that fails for it, and
the file whose old text a new one replaces, with \n for ends of lines. Each test runs in
a process of its own; the file is restored after it, also after Ctrl-C.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
_OUTCOMES = {0: 'NOT CAUGHT', 1: 'caught', 5: 'NOT RUN by make test'}  # As pytest ends.


class Fault(NamedTuple):
  """A fault, and a test that fails for it."""

  sentence: str  # what was wrong
  test: str  # as pytest takes it
  file: str  # below the root
  old: str
  new: str


def listed() -> list[Fault]:
  """The faults of `faults.txt`."""
  lines = pathlib.Path(__file__).with_suffix('.txt').read_text().splitlines()
  faults = []
  for first, second in zip(lines[::2], lines[1::2], strict=True):
    sentence, _, test = first.removesuffix(')').rpartition(' (')
    file, _, change = second.strip().replace('\\n', '\n').partition(': ')
    old, _, new = change.partition(' ==> ')
    faults.append(Fault(sentence, test, file, old, new))
  return faults


def misfit(fault: Fault) -> str:
  """The part of a fault that the code or tests of today lack; '' if none."""
  path, (file, _, name) = ROOT / fault.file, fault.test.partition('::')
  count = path.read_text().count(fault.old) if path.is_file() and fault.old else 0
  if count != 1:
    return f'{fault.file} has its old text {count} times'
  path = ROOT / file
  known = path.is_file() and f'def {name.partition("[")[0]}(' in path.read_text()
  return '' if known else f'there is no test {fault.test}'


@contextlib.contextmanager
def put_back(fault: Fault) -> Iterator[None]:
  """Within the block, the file has the fault."""
  path = ROOT / fault.file
  text = path.read_bytes()
  try:
    path.write_bytes(text.replace(fault.old.encode(), fault.new.encode()))
    yield
  finally:
    path.write_bytes(text)


def main() -> None:
  """Tries the faults; exits with 1 unless all are caught."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--only', default='', help='a text of the lines of a fault')
  only = parser.parse_args().only
  status = ['git', 'status', '--porcelain', '--untracked-files=no']
  if subprocess.run(status, cwd=ROOT, capture_output=True, check=True).stdout:
    sys.exit('Commit the changes of the working tree first: faults are put into it.')
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  env = os.environ | {'PYTHONPATH': str(ROOT), 'PYTHONDONTWRITEBYTECODE': '1'}
  chosen, caught = [fault for fault in listed() if only in ' '.join(fault)], 0
  for number, fault in enumerate(chosen, start=1):
    if not (outcome := misfit(fault)):
      command = [sys.executable, '-m', 'pytest', '-xq', '-m', 'not nightly', fault.test]
      with put_back(fault):
        ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
      outcome = _OUTCOMES.get(ran.returncode, ran.stdout + ran.stderr)
    caught += outcome == 'caught'
    print(f'{number}/{len(chosen)} {outcome}: {fault.sentence}', flush=True)
  print(f'{caught} of {len(chosen)} faults are caught.')
  sys.exit(caught < len(chosen) or not chosen)


if __name__ == '__main__':
  main()
