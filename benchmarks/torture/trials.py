"""Trials: a run that something happens to, the same command again, and what is left."""

import json
import pathlib
import random
import re
import shutil
from typing import NamedTuple

from benchmarks.torture import children, figures, hooks
from benchmarks.torture.cases import Case

_MOST_REMEDIES = 3
_MOST_KILLS = 6  # Of one run.


class Outcome(NamedTuple):
  """Outcome of a trial.

  Attributes:
    fault: row of the table that it belongs to.
    case: name of the command.
    tried: times that the fault was there.
    lost: why the run could not be finished; ''.
    changed: files that say something else than those of the undisturbed run.
    unclear: what ended in something else than a sentence; ''.
  """

  fault: str
  case: str
  tried: int
  lost: str = ''
  changed: tuple[str, ...] = ()
  unclear: str = ''


class Baseline(NamedTuple):
  """An undisturbed run.

  Attributes:
    case: its command.
    workdir: what it left.
    found: see `figures.of`.
    counts: how often each of `hooks.MOMENTS` came.
    seconds: that it took, programs compiled.
  """

  case: Case
  workdir: pathlib.Path
  found: dict[str, str]
  counts: dict[str, int]
  seconds: float


def undisturbed(case: Case, scratch: pathlib.Path) -> Baseline:
  """Runs a command that nothing happens to."""
  workdir = scratch / 'runs' / 'sound' / _plain(case.name)
  counts = scratch / f'counts_{_plain(case.name)}.json'
  plan = hooks.Plan(counts=str(counts))
  ended = children.run(case.module, case.command(workdir), plan)
  if ended.code:
    raise RuntimeError(f'{case.name} ended with {ended.code}:\n{ended.text}')
  held = json.loads(counts.read_text()) if counts.exists() else {}
  return Baseline(case, workdir, figures.of(workdir), held, ended.seconds)


def killed(
  base: Baseline, scratch: pathlib.Path, rng: random.Random, plan: hooks.Plan
) -> list[Outcome]:
  """Kills a run up to six times, and lets it end; an outcome for each kill.

  Args:
    base: the same run, undisturbed.
    scratch: for its workdir and, where the writing of a cache is hit, its cache.
    rng: draws the moments.
    plan: what happens besides.
  """
  case = base.case
  workdir, own = _new(base, scratch), scratch / 'cache' / 'own'
  moments: list[str] = []
  unclear = ''
  try:
    for _ in range(rng.randint(2, _MOST_KILLS)):
      moment = rng.choice(case.moments)
      drawn = _draw(moment, base, rng, plan)
      if drawn is None:
        continue
      if 'cache' in moment:
        shutil.rmtree(own, ignore_errors=True)
        children.use_cache(own)
      ended = children.run(case.module, case.command(workdir), *drawn)
      if ended.killed:
        moments.append(moment)
      elif ended.code:
        unclear = unclear or _tail(ended)
        break
    ended = children.run(case.module, case.command(workdir), plan)
    if not ended.killed and 'Traceback' in ended.text:
      unclear = unclear or _tail(ended)
    lost = _tail(ended) if ended.code else ''
    changed = () if lost else _changed(base, workdir)
  finally:
    children.use_cache(scratch / 'cache')
    shutil.rmtree(workdir, ignore_errors=True)
  return [
    Outcome(f'kill -9 {moment}', case.name, 1, lost, changed, unclear)
    for moment in moments
  ]


def _draw(
  moment: str, base: Baseline, rng: random.Random, plan: hooks.Plan
) -> tuple[hooks.Plan, float | None] | None:
  """A plan to be killed, and seconds after which it is; None if that never comes."""
  if moment in ('at any time', 'one of two processes'):
    return plan, rng.uniform(0.1, 0.7) * base.seconds
  # The undisturbed run found the cache written.
  count = 10 if 'cache' in moment else base.counts.get(moment, 0)
  if not count:
    return None
  delay = rng.choice((0.0, rng.uniform(0, hooks.MOMENTS[moment].delay)))
  number = rng.randint(1, count)
  return plan._replace(moment=moment, number=number, delay=delay), None


def healed(
  base: Baseline,
  workdir: pathlib.Path,
  fault: str,
  plan: hooks.Plan | None = None,
) -> Outcome:
  """Gives the same command until the run is whole, and does what its errors ask for."""
  case, outcome = base.case, Outcome(fault, base.case.name, 1)
  for _ in range(_MOST_REMEDIES):
    ended = children.run(case.module, case.command(workdir), plan)
    if not ended.code:
      return outcome._replace(changed=_changed(base, workdir))
    if not ended.refused:
      return outcome._replace(lost=_tail(ended), unclear=_tail(ended))
    if not _remedied(ended.text, workdir):
      return outcome._replace(lost=_tail(ended))
  return outcome._replace(lost=_tail(ended))


def _remedied(text: str, workdir: pathlib.Path) -> bool:
  """Deletes what an error asks its user to delete, if anything."""
  error = text[text.rindex('error: ') :]
  if 'delete it' not in error:
    return False
  for word in re.findall(rf'{re.escape(str(workdir))}/[\w./-]+', error):
    path = pathlib.Path(word.rstrip('.'))
    if path.is_file():
      path.unlink()
      return True
    if path.is_dir():
      shutil.rmtree(path)
      return True
  return False


def copied(base: Baseline, source: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
  """A copy of a workdir, to be damaged."""
  workdir = _new(base, scratch)
  shutil.copytree(source, workdir)
  return workdir


def halfway(base: Baseline, scratch: pathlib.Path) -> pathlib.Path:
  """The workdir of a run that was killed after half of its rounds."""
  workdir = scratch / 'runs' / 'halfway' / _plain(base.case.name)
  number = base.counts['in a save'] // 2 + 1
  plan = hooks.Plan('in a save', number)
  ended = children.run(base.case.module, base.case.command(workdir), plan)
  if not ended.killed:
    raise RuntimeError(f'{base.case.name} was to be killed:\n{ended.text}')
  return workdir


def _new(base: Baseline, scratch: pathlib.Path) -> pathlib.Path:
  workdir = scratch / 'runs' / 'tried' / _plain(base.case.name)
  shutil.rmtree(workdir, ignore_errors=True)
  workdir.parent.mkdir(parents=True, exist_ok=True)
  return workdir


def _changed(base: Baseline, workdir: pathlib.Path) -> tuple[str, ...]:
  return tuple(figures.differences(base.found, figures.of(workdir)))


def _plain(name: str) -> str:
  return name.replace(' ', '_')


def _tail(ended: children.Ended) -> str:
  return f'exit code {ended.code}: {ended.tail}'
