"""A part in a process of its own, whose rows go to the file of the device."""

import contextlib
import importlib
import json
import multiprocessing
import os
import pathlib
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.accelerator import measuring
from fesem_jax.utils import provenance
from fesem_jax.utils.atomic_files import write_atomically

# Module of each part, and its share of the time.
PARTS = {
  'a': ('device', 0.06),
  'b': ('right', 0.2),
  'c': ('speed', 0.34),
  'd': ('peers', 0.17),
  'e': ('rounds', 0.3),
  'f': ('limits', 0.1),
}

PACKAGE = 'benchmarks.accelerator'

# Seconds that a part gets after its deadline to end what it is at.
GRACE = 5


class Settings(NamedTuple):
  """Settings of all parts."""

  folder: pathlib.Path  # of the file and the log
  small: bool  # see `measuring.Watch`
  cache: str  # see `measuring.Watch`
  only: str = ''  # see `measuring.Watch`


def _child(
  module: str, deadline: float, options: dict[str, Any], log: str, pipe: Connection
) -> None:
  """Measures a part; its rows go through the pipe."""
  os.setpgrp()  # Ended together with the processes that it starts.
  descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  os.dup2(descriptor, 2)
  lock = threading.Lock()

  def say(row: measuring.Row) -> None:
    with lock:
      pipe.send(row)

  watch = measuring.Watch(say, deadline, **options)
  watch.tried(lambda: importlib.import_module(module).measure(watch))
  pipe.close()


class File:
  """The file of a device: parts by their letter, each rows and how it ended."""

  def __init__(self, folder: pathlib.Path, kind: str):
    name = ''.join(c if c.isalnum() else '_' for c in kind.lower())
    self.path = folder / f'accelerator_{name}.json'
    folder.mkdir(parents=True, exist_ok=True)
    self.held: dict[str, Any] = {'device': kind, 'parts': {}}
    if self.path.exists():
      self.held = json.loads(self.path.read_text())
    self.parts = self.held['parts']

  @staticmethod
  def name(part: str, only: str) -> str:
    """The key of a part, or of some of its cases."""
    return f'{part}, {only}' if only else part

  def done(self, part: str) -> bool:
    """Tells if a part is there, to its end."""
    return self.parts.get(part, {}).get('ended') == 'done'

  def write(self) -> None:
    write_atomically(self.path, json.dumps(self.held, indent=1) + '\n')


def run_part(part: str, seconds: float, file: File, settings: Settings) -> None:
  """Runs a part until it ends, or its time is over."""
  context = multiprocessing.get_context('spawn')
  receiver, sender = context.Pipe(duplex=False)
  known = {name: held['rows'] for name, held in file.parts.items()}
  options = settings._asdict() | {'known': known}
  del options['folder']
  log = str(settings.folder / 'accelerator.log')
  began, deadline = time.time(), time.time() + max(1.0, seconds - GRACE)
  module = f'{PACKAGE}.{PARTS[part][0]}'
  process = context.Process(
    target=_child, args=(module, deadline, options, log, sender)
  )
  process.start()
  sender.close()
  held: dict[str, Any] = {'commit': provenance.commit()}
  held['xla_flags'] = os.environ.get('XLA_FLAGS', '')
  held |= {'ended': 'cut off', 'seconds': 0.0, 'rows': []}
  file.parts[file.name(part, settings.only)] = held
  ended = 'done'
  while True:
    seconds_left = deadline + GRACE - time.time()
    if seconds_left <= 0 or not receiver.poll(seconds_left):
      ended = f'ended after {seconds:.0f} s'
      break
    try:
      row = receiver.recv()
    except EOFError:
      break
    print(part, measuring.shown(row), flush=True)
    held['rows'].append(row)
    held['seconds'] = time.time() - began
    file.write()
  process.join(2)
  pid = process.pid
  assert pid is not None
  with contextlib.suppress(ProcessLookupError):
    os.killpg(pid, signal.SIGKILL)
  process.kill()
  process.join()
  if process.exitcode and ended == 'done':
    ended = f'died with exit code {process.exitcode}'
  held |= {'ended': ended, 'seconds': time.time() - began}
  file.write()
  errors = sum('error' in row for row in held['rows'])
  skipped = sum('skipped' in row for row in held['rows'])
  print(
    f'{part} {ended} in {held["seconds"]:.0f} s: {len(held["rows"])} rows, {errors} '
    f'errors, {skipped} skipped',
    flush=True,
  )
