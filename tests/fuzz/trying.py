"""One mutation after the other: what reading it came to."""

import pathlib
import re
import resource
import shutil
import signal
import traceback
import zlib

import numpy as np

from fesem_jax.utils.errors import UserError
from tests.fuzz import formats, run_files

# Processor seconds and memory that reading one file may take.
SECONDS, MEMORY = 5, 2**29


class _Hang(BaseException):
  """Took too long."""


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
    yield _outcome(form, work, limited) | _elsewhere(inner.parent, work, before)
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


def _outcome(form, work, limited):
  what, outcome = '', 'accepted'
  _forget()
  began = _memory()
  try:
    if limited:
      signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
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
  grown = _memory() - began
  if limited and grown > MEMORY:
    outcome, what = 'memory', f'{grown >> 20} MiB ({what})'
  return {'outcome': outcome, 'what': what, 'mib': max(0, grown >> 20)}
