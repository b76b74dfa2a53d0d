"""The table of torture: each fault, times tried, runs lost, figures changed."""

from typing import Any

from benchmarks.torture.trials import Outcome

_HEAD = ('fault', 'times tried', 'without a sentence', 'runs lost', 'figures changed')


def rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
  """A row for each fault, kills first."""
  return [
    {'fault': fault, **_counts([o for o in outcomes if o.fault == fault])}
    for fault in sorted({o.fault for o in outcomes}, key=lambda f: ('kill' not in f, f))
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


def as_markdown(outcomes: list[Outcome]) -> str:
  """Both as one table."""
  lines = [' | '.join(('', *_HEAD, '')).strip(), '|---|---|---|---|---|']
  kills = [o for o in outcomes if o.fault.startswith('kill')]
  found = [
    *rows(outcomes),
    *({'fault': f'all kills of {r["command"]}', **r} for r in by_command(outcomes)),
    {'fault': 'all kills', **_counts(kills)},
  ]
  for r in found:
    cells = (r['fault'], r['tried'], r['unclear'], r['lost'], r['changed'])
    lines.append(' | '.join(('', *map(str, cells), '')).strip())
  return '\n'.join(lines)


def line(outcome: Outcome) -> str:
  """An outcome in a line, and what is wrong with it below."""
  said = f'{outcome.fault}: {outcome.case}'
  wrong = [outcome.lost and f'LOST {outcome.lost}', ', '.join(outcome.changed)]
  wrong.append(outcome.unclear and f'UNCLEAR {outcome.unclear}')
  return '\n'.join([said, *(f'    {w}' for w in wrong if w)])
