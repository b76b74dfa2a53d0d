"""Events in a process under torture: kills, a jumping clock, missing locks.

This module imports the standard library only: processes load it before anything else.
"""

import collections
import errno
import fcntl
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

VARIABLE = 'FESEM_TORTURE'  # The environment variable that carries a `Plan` as JSON.


class Moment(NamedTuple):
  """A kind of moment, as Python's audit events show it.

  Attributes:
    event: name of the audit event; 'open' is of files that are to be written only.
    path: regular expression of what its first arguments name.
    delay: a kill comes up to so many seconds later.
  """

  event: str
  path: str
  delay: float = 0.0


_WORKDIR = r'.*/torture[^/]*/runs/.*'
_CACHE = r'.*/torture[^/]*/cache/.*'

MOMENTS = {
  'in a round': Moment('torture.round', '', 0.004),
  'in a callback': Moment('torture.callback', ''),
  'in a save': Moment('os.mkdir', rf'{_WORKDIR}/checkpoints/\..*partial$', 0.06),
  'between renames': Moment('os.rename', _WORKDIR),
  'at a file of the run': Moment('open', _WORKDIR, 0.002),
  'at a removal': Moment('shutil.rmtree', _WORKDIR, 0.001),
  'while a cache is written': Moment('open', _CACHE, 0.001),
  'before a cache is renamed': Moment('os.rename', _CACHE),
  'while figures are drawn': Moment('open', rf'{_WORKDIR}/plots/.*', 0.02),
  'while a report is written': Moment('os.rename', rf'{_WORKDIR}/\.report\.html.*'),
}


class Plan(NamedTuple):
  """Events planned for a process.

  Attributes:
    moment: of `MOMENTS`, at which it is killed; '' never.
    number: of the moment, from 1.
    delay: seconds after it.
    only: a flag that the process must have been given, as '--process_id=1'.
    clock: whether `time.time` jumps.
    locks: whether the file system has locks.
    counts: file that gets how often each moment came.
  """

  moment: str = ''
  number: int = 0
  delay: float = 0.0
  only: str = ''
  clock: bool = False
  locks: bool = True
  counts: str = ''


def install(plan: Plan) -> None:
  """Makes it happen in this process."""
  if plan.only and plan.only not in sys.orig_argv:
    return
  seen: collections.Counter[str] = collections.Counter()
  if plan.clock:
    time.time = _jumping(time.time)
  if not plan.locks:
    fcntl.flock = _no_locks
  if not plan.moment and not plan.counts:
    return
  wanted = MOMENTS if plan.counts else {plan.moment: MOMENTS[plan.moment]}
  patterns = {name: re.compile(m.path) for name, m in wanted.items()}

  def hook(event: str, args: tuple[Any, ...]) -> None:
    for name, moment in wanted.items():
      if moment.event != event or not patterns[name].match(_named(event, args)):
        continue
      seen[name] += 1
      if plan.counts:
        _keep(plan.counts, seen)
      elif seen[name] == plan.number:
        kill_after(plan.delay)

  sys.addaudithook(hook)


def install_from_environment() -> None:
  """Installs the plan of the environment, if there is one."""
  if VARIABLE in os.environ:
    install(Plan(**json.loads(os.environ[VARIABLE])))


def kill_after(seconds: float) -> None:
  """Kills this process, from outside if not at once, as Python may be busy then."""
  if seconds <= 0:
    os.kill(os.getpid(), signal.SIGKILL)
  command = f'sleep {seconds:.4f}; kill -9 {os.getpid()}'
  os.posix_spawn('/bin/sh', ['sh', '-c', command], dict(os.environ))


def _named(event: str, args: tuple[Any, ...]) -> str:
  """The path that an event is about; '' of a file that is only read."""
  if event == 'open':
    _, _, flags = args
    if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
      return ''
  path = args[0] if args else ''
  return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ''


def _keep(path: str, seen: dict[str, int]) -> None:
  """Writes the counts; the audit hook is not told of `os.pwrite`."""
  text = json.dumps(seen).encode()
  descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
  os.pwrite(descriptor, text, 0)
  os.close(descriptor)


def _jumping(clock: Callable[[], float]) -> Callable[[], float]:
  """A clock that jumps by up to a month, to and fro."""
  rng = random.Random(0)
  return lambda: clock() + rng.choice((0, 0, 0, rng.uniform(-3e6, 3e6)))


def _no_locks(*_: Any) -> None:
  raise OSError(errno.ENOLCK, 'No locks available')


def emit_rounds() -> None:
  """Makes every round an audit event; imports the package."""
  from fesem_jax.run import loop

  run_round = loop.run_round

  def audited(*args: Any) -> Any:
    sys.audit('torture.round', '')
    return run_round(*args)

  vars(loop)['run_round'] = audited


def callback() -> Any:
  """For --callbacks: makes every call of a callback an audit event."""
  from fesem_jax import Callback

  def tell(self: Any, event: Any) -> None:
    del self, event
    sys.audit('torture.callback', '')

  calls = ('on_start', 'on_round', 'on_evaluation', 'on_round_end', 'on_end')
  return type('Told', (Callback,), dict.fromkeys(calls, tell))()


def scratch() -> str:
  """A new folder for runs and caches, by whose name moments know it."""
  return tempfile.mkdtemp(prefix='torture')


def free(folder: str) -> None:
  """Removes a folder of `scratch`."""
  shutil.rmtree(folder, ignore_errors=True)
