"""Many configurations, carried out side by side."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from fesem_jax.analysis import costs_table
from fesem_jax.run.many import simulate_many
from fesem_jax.run.programs import Programs
from fesem_jax.utils.errors import Diverged, NeverPatient, UserError

from . import flags as experiment_flags
from . import outcome as outcomes
from .errors import in_flags
from .run import HeldData, Planned, plan


class Wanted(NamedTuple):
  """One of many runs."""

  config: dict[str, Any]  # from `flags.configuration`
  workdir: pathlib.Path
  what: str  # begins each line that is printed


# What a run came to: its summary with the curve, None if it diverged, or why it cannot
# run.
Outcome = dict[str, Any] | None | UserError


def summary_of(outcome: Outcome) -> dict[str, Any] | None:
  """The summary of a run, None if it diverged; raises why it cannot run."""
  if isinstance(outcome, UserError):
    raise outcome
  return outcome


def run_unless_diverged(
  wanted: Sequence[Wanted],
  programs: Programs,
  *,
  said: set[str] | None = None,
  **options: Any,
) -> list[Outcome]:
  """Runs many configurations, side by side where `simulate_many` can.

  `said` are lines that earlier runs have printed on data, model and method, and that
  are not repeated; those of these runs are added. None repeats them. See `plan` for all
  other arguments.
  """
  machine, held = experiment_flags.machine(), HeldData()
  found: list[Outcome] = [None] * len(wanted)
  planned: list[tuple[int, Planned]] = []

  def say(what: str, text: str) -> None:
    if said is None or text not in said:
      print(f'[{what}] {text}')
    if said is not None:
      said.add(text)

  for place, (config, workdir, what) in enumerate(wanted):
    told = functools.partial(say, what)
    try:
      own = plan(
        config, machine, workdir, say=told, programs=programs, held=held, **options
      )
    except UserError as e:
      found[place] = e
    else:
      planned.append((place, own))

  done = {w.what for w in wanted if (w.workdir / 'summary.json').exists()}

  def keep(number: int, outcome: Any) -> None:
    place, own = planned[number]
    what = wanted[place].what
    if isinstance(outcome, Diverged):
      print(f'{what} diverged: {in_flags(str(outcome))}')
    elif isinstance(outcome, UserError):
      found[place] = outcome
    else:
      own.after(outcome)
      if not machine.get('quiet'):
        seconds = outcome.summary['timing']['total_seconds']
        before = ', done before' if what in done else ''
        print(f'[{what}] {outcomes.line(outcome.summary, seconds)}{before}')
      found[place] = costs_table.with_curve(
        outcome.summary, outcome.history, outcome.clients
      )

  simulate_many(
    [own.arguments for _, own in planned],
    runs_at_once=machine.get('runs_at_once') or 0,
    programs=programs,
    keep=keep,
  )
  never = [i for i, outcome in enumerate(found) if isinstance(outcome, NeverPatient)]
  if never:  # The patience is for other methods of a comparison.
    patience, first = wanted[never[0]].config['patience'], wanted[never[0]].what
    say(first, f'Note: --patience={patience} has no effect: there are no clusters.')
    again = [
      wanted[i]._replace(config=wanted[i].config | {'patience': 0}) for i in never
    ]
    outcomes_again = run_unless_diverged(again, programs, said=said, **options)
    for i, outcome in zip(never, outcomes_again, strict=True):
      found[i] = outcome
  return found
