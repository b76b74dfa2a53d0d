r"""Runs one method in several processes on this machine.

  fesem-launch-local --num_processes=2 -- --algorithm=fesem \
      --dataset=digits --partition=rotated --num_clusters=4

What follows `--` are flags of fesem-run. Each process gets an equal share of the cores.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, NamedTuple

from absl import flags

from fesem_jax.core import sharding
from fesem_jax.utils.interrupts import handed_on

from .start import LOST_OTHERS, start

# The others of a process that failed end by themselves within this, or are killed.
_GRACE_SECONDS = 8.0
_POLL_SECONDS = 0.05
_LINES = 40  # Kept of what a process prints that is not the first.
_INTERRUPTED = 130


class Launched(NamedTuple):
  """A process of the run."""

  number: int  # its --process_id
  popen: subprocess.Popen[bytes]
  printed: IO[bytes] | None  # what it printed; None of the first, which prints itself

  def code(self) -> int | None:
    """The exit code, negative for a signal; None while it runs."""
    return self.popen.poll()


def launch(num_processes: int, given: list[str]) -> int:
  """Runs the processes to their end, with flags of `fesem-run`.

  Returns the exit code of the run: 0, 130 after a signal, or that of the process that
  failed.
  """
  share = max(1, sharding.cores() // num_processes)
  address = f'127.0.0.1:{_free_port()}'
  environment = {'JAX_PLATFORMS': 'cpu'} | os.environ
  environment['JAX_COORDINATOR_BIND_ADDRESS'] = address  # No other machine's concern.
  command = [sys.executable, '-m', f'{__package__}.run']
  command += [f'--num_devices={share * num_processes}', *given]
  command += [f'--coordinator_address={address}', f'--num_processes={num_processes}']
  started: list[Launched] = []

  def send(number: int) -> None:
    for process in started:
      process.popen.send_signal(number)  # Nothing to those that have ended.

  with contextlib.ExitStack() as opened, handed_on(send) as received:
    try:
      for i in range(num_processes):
        out = opened.enter_context(tempfile.TemporaryFile()) if i else None
        popen = subprocess.Popen(
          [*command, f'--process_id={i}'],
          env=environment,
          stdin=subprocess.DEVNULL,
          stdout=out,
          stderr=out,
          start_new_session=True,  # Ctrl-C comes from here alone, once.
        )
        started.append(Launched(i, popen, out))
      first = _wait(started)
    finally:
      send(signal.SIGKILL)
      for process in started:
        process.popen.wait()
    if received and first is not None:
      return _INTERRUPTED
    return 0 if first is None else _report(first)


def _wait(started: list[Launched]) -> Launched | None:
  """Waits until all have ended; the one whose failure ended the others, if any."""
  failed: list[Launched] = []
  deadline = float('inf')
  while any(p.code() is None for p in started) and time.monotonic() < deadline:
    time.sleep(_POLL_SECONDS)
    failed += [p for p in started if p.code() and p not in failed]
    if failed:
      deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
  failed += [p for p in started if p.code() and p not in failed]
  by_itself = [p for p in failed if p.code() not in (LOST_OTHERS, -signal.SIGABRT)]
  by_itself.sort(key=lambda p: p.number)  # The first one has said what all found.
  return next(iter(by_itself + failed), None)


def _report(process: Launched) -> int:
  """Says which process failed, and how, unless it has said so; its exit code."""
  code, name = process.code() or 1, f'process {process.number}'
  if process.printed is not None:
    process.printed.seek(0)
    for line in process.printed.read().decode(errors='replace').splitlines()[-_LINES:]:
      print(f'[{name}] {line.rstrip()}', file=sys.stderr)
  if code < 0:
    how = f'was ended by {signal.Signals(-code).name}'
    if code == -signal.SIGABRT:  # JAX aborts what a silent process leaves waiting.
      how += ', as JAX does where another process no longer answers'
    _say(f'{name} {how}; the others were ended too.')
    return 128 - code
  if process.number:
    _say(f'{name} failed; the others were ended too.')
  return code


def _say(what: str) -> None:
  again = 'Run the same command again to continue from the last checkpoint.'
  print(f'error: {what} {again}', file=sys.stderr)


def _free_port() -> int:
  with socket.create_server(('127.0.0.1', 0)) as listener:
    return int(listener.getsockname()[1])


def main(argv: list[str]) -> int:
  given = argv[1:]
  return launch(flags.FLAGS.num_processes, given)


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_integer(
    'num_processes',
    2,
    'Processes to start, each with its share of the cores; more processes than '
    'cores are slower.',
    lower_bound=1,
    upper_bound=256,
  )


if __name__ == '__main__':
  define_flags()
  start(main)
