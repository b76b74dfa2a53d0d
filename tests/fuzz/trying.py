"""One mutation after the other: what reading it came to."""

import os
import pathlib
import re
import resource
import shutil
import signal
import sys
import traceback
import zlib
from unittest import mock

import jax
import numpy as np

from fesem_jax.utils.errors import UserError
from tests.fuzz import formats, run_files

# Processor seconds and memory that reading one file may take, and what compressed files
# may expand to meanwhile, in place of 1 GiB.
SECONDS, MEMORY = 5, 2**29

# What reading a file may never do.
_NEVER = (
  'pickle.find_class', 'subprocess.Popen', 'os.system', 'os.exec', 'os.posix_spawn',
  'socket.connect',
)  # fmt: skip
_CHANGES = {
  'os.rename': (0, 1), 'os.remove': (0,), 'os.mkdir': (0,), 'os.rmdir': (0,),
  'os.symlink': (1,), 'os.link': (1,), 'os.truncate': (0,), 'os.chmod': (0,),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _Hang(BaseException):
  """Took too long."""


class _Watch:
  """An audit hook, which can be put to sleep but never be removed."""

  def __init__(self):
    self.allowed: tuple[str, ...] | None = None
    self.seen: list[str] = []
    sys.addaudithook(self)

  def __call__(self, event, args):
    if self.allowed is None:
      return
    if event in _NEVER and 'git' not in args:  # Whose commit a run is of.
      self.seen.append(f'{event} {str(args[:2])[:100]}')
    elif event == 'open':
      path, mode, flags = args
      writes = (isinstance(mode, str) and set(mode) & set('wax+')) or (
        isinstance(flags, int) and flags & _WRITING
      )
      if writes and not isinstance(path, int):
        self._check(path)
    elif event in _CHANGES:
      # What is named from an open folder was found by walking down to it.
      below = event != 'os.symlink' and isinstance(args[-1], int) and args[-1] != -1
      for at in _CHANGES[event]:
        if isinstance(args[at], int):
          continue
        if not below or os.path.isabs(os.fsdecode(args[at])):
          self._check(args[at])

  def _check(self, path):
    if isinstance(path, int) or path is None:
      return
    full = os.path.abspath(os.fsdecode(path))
    if not full.startswith((*self.allowed, '/dev/', '/proc/')):
      self.seen.append(f'writes {full[:100]}')


_watching: list[_Watch] = []


def watch():
  """The hook of this process."""
  if not _watching:
    _watching.append(_Watch())
  return _watching[0]


def _memory():
  """Bytes at most since `_forget`."""
  text = pathlib.Path('/proc/self/status').read_text()
  return int(re.search(r'VmHWM:\s+(\d+)', text)[1]) * 1024


def _forget():
  try:
    pathlib.Path('/proc/self/clear_refs').write_text('5')
  except OSError:
    return


def _hang(*_):
  raise _Hang


def tried(name, numbers, seed, box, limited=False):
  """Outcomes of some mutations of a format.

  Args:
    name: of the format.
    numbers: which mutations.
    seed: of all.
    box: folder for everything that is written.
    limited: whether time and memory are bounded: in a process of its own.

  Yields:
    {'outcome': 'sentence', 'accepted' or a fault, 'what': text, 'mib': number}.
  """
  form = formats.FORMATS[name]
  slug = re.sub(r'\W', '_', name)
  sound, inner = box / 'sound' / slug, box / 'tries' / slug / 'inner'
  (box / 'home').mkdir(parents=True, exist_ok=True)
  run_files.keep_runs_in(box / 'home')
  if not sound.exists():
    form.write(sound)
  if limited:
    signal.signal(signal.SIGPROF, _hang)
    warm = box / 'warm' / slug
    shutil.rmtree(warm, ignore_errors=True)
    shutil.copytree(sound, warm)
    form.read(warm)  # What is imported and compiled first does not count.
    used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * 4096
    most = used + 8 * MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  for number in numbers:
    work = inner / 'work'
    shutil.rmtree(inner.parent, ignore_errors=True)
    shutil.copytree(sound, work)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
    form.change(rng, work)
    before = _all_files(inner.parent, work)
    yield _outcome(form, work, box, limited) | _elsewhere(inner.parent, work, before)
  shutil.rmtree(inner.parent, ignore_errors=True)


def _all_files(folder, work):
  return {p for p in folder.rglob('*') if work not in p.parents and p != work}


def _elsewhere(folder, work, before):
  """A fault if there are new files beside the folder that was read."""
  evil = pathlib.Path('/tmp/fesem_fuzz_evil')
  found = _all_files(folder, work) - before
  if found or evil.exists():
    return {'outcome': 'file', 'what': str(found or evil)}
  return {}


def _outcome(form, work, box, limited):
  hook, what, outcome = watch(), '', 'accepted'
  hook.seen.clear()
  # Hugging Face's datasets keep what they have read in the user's cache.
  caches = box / 'home', pathlib.Path.home() / '.cache'
  programs = jax.config.jax_compilation_cache_dir or box
  hook.allowed = (str(work), *map(str, caches), str(programs))
  _forget()
  began = _memory()
  try:
    if limited:
      signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
      # A module that is imported here for the first time may not write its bytecode.
      with mock.patch.object(sys, 'dont_write_bytecode', True):
        form.read(work)
    finally:
      if limited:
        signal.setitimer(signal.ITIMER_PROF, 0)
  except UserError as e:
    outcome, what = 'sentence', str(e)[:200]
  except _Hang:
    outcome, what = 'hang', f'more than {SECONDS} s'
  except BaseException as e:
    if isinstance(e, KeyboardInterrupt):
      raise
    last = traceback.extract_tb(e.__traceback__)
    own = [
      f for f in last if '/fesem_jax/' in f.filename or '/experiments/' in f.filename
    ]
    at = (own or last)[-1]
    where = f'{pathlib.Path(at.filename).name}:{at.lineno}'
    outcome, what = 'exception', f'{type(e).__name__} at {where}: {str(e)[:150]}'
  finally:
    hook.allowed = None
  grown = _memory() - began
  if hook.seen:
    outcome, what = 'act', hook.seen[0]
  elif limited and grown > MEMORY:
    outcome, what = 'memory', f'{grown >> 20} MiB ({what})'
  return {'outcome': outcome, 'what': what, 'mib': max(0, grown >> 20)}
