"""Many configurations, carried out side by side."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fesem_jax.analysis.runs_of_methods import Outcome
from fesem_jax.run.loop import run_many
from fesem_jax.run.results import files
from fesem_jax.run.results.frames import Recorded
from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import Diverged, UserError
from fesem_jax.utils.progress_lines import duration

from . import flags as experiment_flags
from . import outcome as outcomes
from .build import HeldData, data_of
from .run import Planned, plan


class Wanted(NamedTuple):
  """One of many runs."""

  config: dict[str, Any]  # from `flags.configuration`
  workdir: pathlib.Path
  what: str  # begins each line that is printed


class Count:
  """Counts the runs of a command, and says how long the others take.

  Args:
    total: number of all runs.
  """

  def __init__(self, total: int):
    self._total, self._done, self._seconds = total, 0, list[float]()

  def add(self, seconds: float | None = None) -> str:
    """Counts a run that took `seconds`, or was done before; says which one it is."""
    self._done += 1
    if seconds is not None:
      self._seconds.append(seconds)
    text, left = f'run {self._done} of {self._total}', self._total - self._done
    if left and self._seconds:
      mean = sum(self._seconds) / len(self._seconds)
      text += f', about {duration(mean * left)} left'
    return text


def run_unless_diverged(
  wanted: Sequence[Wanted],
  *,
  about: str = '',
  count: Count | None = None,
  printed: set[str] | None = None,
  other_flags: Mapping[str, Any] | None = None,
  like: Sequence[dict[str, Any]] = (),
  at_once: int = 0,
  portraits_of: Sequence[int] = (),
  held: HeldData | None = None,
  **options: Any,
) -> list[Outcome]:
  """Runs many configurations, side by side where `run_many` can.

  `about` says on lines of progress what they are; `count` is that of the command.
  `printed` are lines that earlier runs have printed on data, model and method, and that
  are not repeated; those of these runs are added. None repeats them. `other_flags` go
  before those of `flags.machine`. `like` are configurations of other runs that are to
  share the compiled programs, `at_once` of them in each call unless --runs_at_once is
  given; `held` has their data. See `plan` for all other arguments.
  """
  machine = experiment_flags.machine() | dict(other_flags or {})
  held = HeldData() if held is None else held
  counted = count or Count(len(wanted))
  ended: list[Outcome] = [
    Recorded.of(None, seed=w.config['seed'], config=w.config, folder=str(w.workdir))
    for w in wanted
  ]
  planned: list[tuple[int, Planned]] = []

  def say(what: str, text: str) -> None:
    if printed is None or text not in printed:
      print(f'[{what}] {text}')
    if printed is not None:
      printed.add(text)

  for place, (config, workdir, what) in enumerate(wanted):
    tell = functools.partial(say, what)
    portrait = config['seed'] in portraits_of
    try:
      own = plan(
        config, machine, workdir, say=tell, held=held, make_portrait=portrait, **options
      )
    except UserError as e:
      ended[place] = e
      counted.add()
    else:
      planned.append((place, own))

  rounds = {w.what: files.saved_rounds(w.workdir) for w in wanted}

  def keep(number: int, outcome: Any) -> None:
    place, own = planned[number]
    what = wanted[place].what
    if isinstance(outcome, Diverged):
      print(f'{what} diverged: {outcome!s} ({counted.add()})')
    elif isinstance(outcome, UserError):
      ended[place] = outcome
    else:
      own.after(outcome)
      before = outcome.summary['rounds'] in rounds[what]
      seconds = outcome.summary['timing']['total_seconds']
      which = counted.add(None if before else seconds)
      if not machine.get('quiet'):
        line = outcomes.line(outcome.summary, seconds)
        print(f'[{what}] {line}{", done before" if before else ""}; {which}')
      config, folder = wanted[place].config, str(wanted[place].workdir)
      ended[place] = Recorded.of(outcome, '', config['seed'], config, folder)

  asked, splits = machine.get('runs_at_once') or 0, list[Any]()
  if like and not asked:
    asked = at_once
    for config in [*like, *(w.config for w in wanted)]:
      (_, *pair), *_ = data_of(config, machine, held)[0]
      splits.append(tuple(pair))
  with progress_lines.about(f'{about}, {len(wanted)} runs' if about else ''):
    run_many([own.spec for _, own in planned], asked, keep, splits)
  return ended
