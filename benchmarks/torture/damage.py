"""Faults of disks, files, clocks and locks."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
from collections.abc import Iterator

from benchmarks.torture import children, hooks, trials
from benchmarks.torture.trials import Baseline, Outcome

# Files of a workdir that have checksums; the first that match.
_FILES = {'a checkpoint': 'checkpoints/*/**/*', 'models.npz': 'models.npz'}


def flipped(
  base: Baseline, source: pathlib.Path, scratch: pathlib.Path, rng: random.Random
) -> Outcome | None:
  """Flips a bit of a file of a workdir; None where it has no such file."""
  what = rng.choice(list(_FILES))
  workdir = trials.copied(base, source, scratch)
  files = [p for p in sorted(workdir.glob(_FILES[what])) if p.is_file()]
  files = [p for p in files if p.stat().st_size]
  if not files:
    return None
  path = rng.choice(files)
  content = bytearray(path.read_bytes())
  content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
  path.write_bytes(content)
  fault = f'a flipped bit in {what}'
  outcome = trials.healed(base, workdir, fault)
  if not outcome.changed or not _is_refused(workdir):
    return outcome
  (workdir / 'models.npz').unlink()
  return trials.healed(base, workdir, fault)


def _is_refused(workdir: pathlib.Path) -> bool:
  """True if `models.npz`, which only its readers check whole, is refused by them."""
  from fesem_jax.run.results import saved_models
  from fesem_jax.utils.errors import UserError

  rounds = json.loads((workdir / 'summary.json').read_bytes())['rounds']
  try:
    saved_models.read(workdir, rounds)
  except UserError:
    return True
  return False


def truncated(
  base: Baseline, source: pathlib.Path, scratch: pathlib.Path, rng: random.Random
) -> Outcome:
  """Cuts metrics.jsonl anywhere; a valid copy replaces it where the run asks for it."""
  workdir = trials.copied(base, source, scratch)
  path = workdir / 'metrics.jsonl'
  valid, fault = path.read_bytes(), 'metrics.jsonl cut short'
  os.truncate(path, rng.randrange(len(valid)))
  outcome = trials.healed(base, workdir, fault)
  if 'metrics.jsonl' not in outcome.lost:
    return outcome
  path.write_bytes(valid)
  return trials.healed(base, workdir, fault)


def jumping_clock(base: Baseline, scratch: pathlib.Path, rng: random.Random) -> Outcome:
  """Runs, is killed and resumes while the clock jumps."""
  return _killed_once(base, scratch, rng, hooks.Plan(clock=True), 'a clock that jumps')


def without_locks(base: Baseline, scratch: pathlib.Path, rng: random.Random) -> Outcome:
  """Runs, is killed and resumes on a file system without locks."""
  return _killed_once(base, scratch, rng, hooks.Plan(locks=False), 'no file locks')


def _killed_once(
  base: Baseline,
  scratch: pathlib.Path,
  rng: random.Random,
  plan: hooks.Plan,
  fault: str,
) -> Outcome:
  workdir = trials.copied(base, base.workdir, scratch)
  shutil.rmtree(workdir)
  number = rng.randint(1, base.counts['between renames'])
  fatal = plan._replace(moment='between renames', number=number)
  children.run(base.case.module, base.case.command(workdir), fatal)
  # Without locks it cannot be known whether another run still writes these.
  outcome = trials.healed(base, workdir, fault, plan)
  left = [n for n in outcome.changed if not plan.locks and '.partial' in n]
  return outcome._replace(changed=tuple(n for n in outcome.changed if n not in left))


def why_no_disks() -> str:
  """Why this process cannot mount small disks; '' if it can."""
  if os.geteuid():
    return 'only root may mount a disk'
  with trials_folder() as folder:
    done = _mount('-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', str(folder))
    if done:
      return f'mount: {done}'
    _unmount(folder)
  return ''


@contextlib.contextmanager
def trials_folder() -> Iterator[pathlib.Path]:
  """A folder to mount on."""
  folder = pathlib.Path(hooks.scratch())
  try:
    yield folder
  finally:
    hooks.free(str(folder))


def full_disk(base: Baseline, scratch: pathlib.Path, rng: random.Random) -> Outcome:
  """Runs on a disk that fills up, which is then made larger."""
  kilobytes = int(20 * 60 ** rng.random())  # 20 KiB to 1.2 MiB, evenly in logarithm.
  fault = 'a disk that is full'
  with _disk(scratch / 'disk', f'{kilobytes}k') as disk:
    workdir = disk / 'run'
    ended = children.run(base.case.module, base.case.command(workdir))
    _mount('-o', 'remount,size=1g', str(disk))
    outcome = trials.healed(base, workdir, fault)
  if ended.code and not ended.refused:
    return outcome._replace(unclear=f'{kilobytes} KiB: {ended.tail}')
  return outcome


def read_only(base: Baseline, source: pathlib.Path, scratch: pathlib.Path) -> Outcome:
  """Goes on in a folder that is read-only, and then no longer; or only reads it."""
  finished = source == base.workdir
  fault = f'a read-only folder of a {"finished" if finished else "killed"} run'
  with _disk(scratch / 'disk', '1g') as disk:
    workdir = disk / 'run'
    shutil.copytree(source, workdir)
    _mount('-o', 'remount,ro', str(disk))
    ended = children.run(base.case.module, base.case.command(workdir))
    _mount('-o', 'remount,rw', str(disk))
    outcome = trials.healed(base, workdir, fault)
  if ended.code != (0 if finished else 1) or 'Traceback' in ended.text:
    return outcome._replace(unclear=ended.tail)
  return outcome


@contextlib.contextmanager
def _disk(folder: pathlib.Path, size: str) -> Iterator[pathlib.Path]:
  """A small disk in memory."""
  folder.mkdir(exist_ok=True)
  if failed := _mount('-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(folder)):
    raise RuntimeError(f'mount: {failed}')
  try:
    yield folder
  finally:
    _unmount(folder)


def _mount(*arguments: str) -> str:
  """Calls mount; what it complains of, or ''."""
  done = subprocess.run(['mount', *arguments], capture_output=True, text=True)
  return done.stderr.strip() if done.returncode else ''


def _unmount(folder: pathlib.Path) -> None:
  subprocess.run(['umount', str(folder)], check=True)
