"""The table of torture: each fault, times tried, runs lost, results changed."""

from typing import Any

from benchmarks.torture.trials import Outcome
from fesem_jax.utils import text_tables

_COUNTS = ('tried', 'unclear', 'lost', 'changed')
_HEAD = ('fault', 'times tried', 'no message', 'runs lost', 'results changed')


def rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
  """A row for each fault, kills first."""
  return [
    {'fault': fault, **_counts([o for o in outcomes if o.fault == fault])}
    for fault in sorted({o.fault for o in outcomes}, key=_order)
  ]


def by_command(outcomes: list[Outcome]) -> list[dict[str, Any]]:
  """Kills of each command."""
  kills = [o for o in outcomes if o.fault.startswith('kill')]
  names = dict.fromkeys(o.case for o in kills)
  return [{'command': n, **_counts([o for o in kills if o.case == n])} for n in names]


def _counts(outcomes: list[Outcome]) -> dict[str, int]:
  return {
    'tried': sum(o.tried for o in outcomes),
    'unclear': sum(bool(o.unclear) for o in outcomes),
    'lost': sum(bool(o.lost) for o in outcomes),
    'changed': sum(bool(o.changed) for o in outcomes),
  }


def as_markdown(found: list[dict[str, Any]], commands: list[dict[str, Any]]) -> str:
  """Rows of faults, and of commands, as one table."""
  kills = [r for r in found if r['fault'].startswith('kill')]
  total = {name: sum(r[name] for r in kills) for name in _COUNTS}
  listed = (
    *found,
    *({'fault': f'all kills of {r["command"]}', **r} for r in commands),
    {'fault': 'all kills', **total},
  )
  cells = [[r['fault'], *(str(r[name]) for name in _COUNTS)] for r in listed]
  return '\n'.join(text_tables.markdown(_HEAD, cells))


def of_runs(runs: list[dict[str, Any]]) -> str:
  """The table of several runs of the tool, added up."""
  return as_markdown(
    _added(runs, 'rows', 'fault'), _added(runs, 'by_command', 'command')
  )


def _added(runs: list[dict[str, Any]], part: str, key: str) -> list[dict[str, Any]]:
  names = dict.fromkeys(r[key] for run in runs for r in run[part])
  if key == 'fault':
    names = dict.fromkeys(sorted(names, key=_order))
  return [
    {key: n} | {
      count: sum(r[count] for run in runs for r in run[part] if r[key] == n)
      for count in _COUNTS
    }
    for n in names
  ]  # fmt: skip


def _order(fault: str) -> tuple[bool, str]:
  return 'kill' not in fault, fault


def line(outcome: Outcome) -> str:
  """An outcome in a line, and what is wrong with it below."""
  heading = f'{outcome.fault}: {outcome.case}'
  wrong = [outcome.lost and f'LOST {outcome.lost}', ', '.join(outcome.changed)]
  wrong.append(outcome.unclear and f'UNCLEAR {outcome.unclear}')
  return '\n'.join([heading, *(f'    {w}' for w in wrong if w)])
