"""The processes of one run on this machine (--local)."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from fesem_jax.core import sharding
from fesem_jax.utils.errors import check
from fesem_jax.utils.interrupts import handed_on

from .start import INTERRUPTED, LOST_OTHERS

# The others of a process that failed end by themselves within this, or are killed.
_GRACE_SECONDS = 8.0


def launch(num_processes: int, arguments: list[str]) -> int:
  """Runs processes of `fesem-run` to their end, each with a share of the cores.

  Only the first prints its output. Returns 0, 130 after a signal, or the exit code of
  the process that failed.
  """
  check(num_processes > 0, 'local: needs num_processes')
  with socket.create_server(('127.0.0.1', 0)) as listener:
    address = f'127.0.0.1:{listener.getsockname()[1]}'
  environment = {'JAX_PLATFORMS': 'cpu'} | os.environ
  environment['JAX_COORDINATOR_BIND_ADDRESS'] = address  # No other machine's concern.
  devices = num_processes * max(1, sharding.cores() // num_processes)
  command = [sys.executable, '-m', f'{__package__}.run', f'--num_devices={devices}']
  command += [*arguments, '--nolocal', f'--coordinator_address={address}']
  started: list[subprocess.Popen[bytes]] = []

  def send(number: int) -> None:
    for process in started:
      process.send_signal(number)  # Nothing to those that have ended.

  with handed_on(send) as received:
    try:
      for i in range(num_processes):
        out = subprocess.DEVNULL if i else None
        # Ctrl-C comes from here alone, once.
        process = subprocess.Popen(
          [*command, f'--process_id={i}'], env=environment, stdin=subprocess.DEVNULL,
          stdout=out, start_new_session=True,
        )  # fmt: skip
        started.append(process)
      while all(not p.poll() for p in started) and any(
        p.poll() is None for p in started
      ):
        time.sleep(0.05)
      for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(_GRACE_SECONDS)
    finally:
      send(signal.SIGKILL)
  failed = [code for process in started if (code := process.wait())]
  if not failed or received:
    return INTERRUPTED if failed else 0
  # JAX aborts what a silent process leaves waiting.
  failed.sort(key=lambda code: code in (LOST_OTHERS, -signal.SIGABRT))
  return failed[0] if failed[0] > 0 else 128 - failed[0]
