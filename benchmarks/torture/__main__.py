r"""Kills, starves and damages real runs, and compares what they end with.

  python -m benchmarks.torture --seconds=1200

Commands of `experiments` run on small data, are killed by SIGKILL up to six times at
moments that are drawn, and go on by the same command; metrics, summary, clients.csv,
models and tables must then be, bit for bit, those of a run that was left alone. Between
these, disks fill up or turn read-only, bits of files flip, metrics are cut, the clock
jumps and locks are missing. The table says of each fault how often it was tried, how
many runs it lost, in how many it changed a figure, and where something else than a
sentence ended a run.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.torture import cases, children, damage, hooks, table, trials
from benchmarks.torture.trials import Baseline, Outcome

_RESULTS = pathlib.Path(__file__).parents[1] / 'results' / 'torture_cpu.json'


def tried(
  bases: list[Baseline],
  scratch: pathlib.Path,
  rng: random.Random,
  disks: bool,
  kills_only: bool,
) -> Iterator[list[Outcome]]:
  """Outcomes of trials, without an end."""
  single = [] if kills_only else [b for b in bases if b.case.module == 'run']
  halves = {base.case.name: trials.halfway(base, scratch) for base in single}
  spent = {base.case.name: 0.0 for base in bases}
  while True:
    # Each command gets as much time as any other.
    base = min(bases, key=lambda b: spent[b.case.name])
    began = time.monotonic()
    yield trials.killed(base, scratch, rng, hooks.Plan())
    spent[base.case.name] += time.monotonic() - began
    if single:
      one = rng.choice(single)
      source = rng.choice((halves[one.case.name], one.workdir))
      outcome = damage.flipped(one, source, scratch, rng)
      yield [outcome] if outcome else []
      others: list[Callable[[], Outcome]] = [
        partial(damage.truncated, one, source, scratch, rng),
        partial(damage.jumping_clock, one, scratch, rng),
        partial(damage.without_locks, one, scratch, rng),
      ]
      if disks:
        others += [
          partial(damage.full_disk, one, scratch, rng),
          partial(damage.read_only, one, source, scratch),
        ]
      yield [rng.choice(others)()]


def main() -> int:
  """Runs the trials; the exit code says whether all runs survived unchanged."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--seconds',
    type=float,
    default=1200.0,
    help='How long trials go on; 0: until Ctrl-C. One that has begun is finished.',
  )
  parser.add_argument('--seed', type=int, default=0, help='Of the trials.')
  parser.add_argument(
    '--cases',
    default='',
    help=f'Commands, of {", ".join(c.name for c in cases.CASES)}; default: all.',
  )
  parser.add_argument(
    '--kills_only', action='store_true', help='Leave all other faults out.'
  )
  parser.add_argument('--out', type=pathlib.Path, default=_RESULTS,
    help='File of the tables, with an .md beside it of all runs in it.')  # fmt: skip
  chosen = parser.parse_args()
  names = chosen.cases.split(',') if chosen.cases else [c.name for c in cases.CASES]
  if unknown := set(names) - {c.name for c in cases.CASES}:
    parser.error(f'--cases: unknown {", ".join(sorted(unknown))}')
  scratch = pathlib.Path(hooks.scratch())
  outcomes: list[Outcome] = []
  began = time.monotonic()
  no_disks = damage.why_no_disks()
  try:
    children.prepare(scratch / 'cache')
    cases.write_data(scratch)
    bases = []
    for case in (c for c in cases.CASES if c.name in names):
      bases.append(trials.undisturbed(case, scratch))
      print(f'{case.name}: {bases[-1].seconds:.1f} s undisturbed', flush=True)
    rng = random.Random(chosen.seed)
    for some in tried(bases, scratch, rng, not no_disks, chosen.kills_only):
      outcomes += some
      for outcome in some:
        print(f'{time.monotonic() - began:6.0f} s  {table.line(outcome)}', flush=True)
      write(outcomes, chosen.out, time.monotonic() - began, no_disks)
      if chosen.seconds and time.monotonic() - began > chosen.seconds:
        break
  except KeyboardInterrupt:
    print('Stopped.', file=sys.stderr)
  finally:
    hooks.free(str(scratch))
  print(table.as_markdown(table.rows(outcomes), table.by_command(outcomes)))
  if no_disks:
    print(f'\nDisks were left out: {no_disks}.')
  return int(any(o.lost or o.changed or o.unclear for o in outcomes))


def write(
  outcomes: list[Outcome], path: pathlib.Path, seconds: float, no_disks: str
) -> None:
  """Writes the table, and every trial that went wrong."""
  run = {
    'date': datetime.date.today().isoformat(),
    'cores': os.cpu_count(),
    'flags': ' '.join(sys.argv[1:]),
    'seconds': round(seconds),
    'left_out': no_disks,
    'rows': table.rows(outcomes),
    'by_command': table.by_command(outcomes),
    'wrong': [o._asdict() for o in outcomes if o.lost or o.changed or o.unclear],
  }
  held = json.loads(path.read_text())['runs'] if path.exists() else []
  # An earlier run of the same flags is replaced.
  runs = [*(r for r in held if r['flags'] != run['flags']), run]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({'runs': runs}, indent=1) + '\n')
  path.with_suffix('.md').write_text(table.of_runs(runs) + '\n')


if __name__ == '__main__':
  sys.exit(main())
