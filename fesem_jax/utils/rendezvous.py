"""Rendezvous of the processes before JAX connects them.

`jax.distributed.initialize` cannot do this alone. With JAX 0.10.2 and 0.12.0 and an
`initialization_timeout`, a process ends by SIGABRT and a C++ trace if the coordinator
or another process is missing or if two processes have the same id, and by SIGSEGV if
the port is taken; processes that disagree on their number are connected. Here the first
process listens at the coordinator's address until all others have sent their ids,
answers them, and releases the address to JAX.
"""

import contextlib
import ipaddress
import json
import socket
import time
from typing import Any

from fesem_jax.utils.errors import UserError

_MAX_BYTES = 1000  # Of a message.
_RETRY_SECONDS = 0.2
# Process 0 of this machine is expected within this at a name of this machine.
_LOCAL_SECONDS = 8.0


def wait_for_all(address: str, process_id: int, count: int, seconds: float) -> None:
  """Waits until all `count` processes are present and agree on their number.

  Raises `UserError` in every process that is present if others are missing after
  `seconds`, or if they disagree.
  """
  deadline = time.monotonic() + seconds
  if process_id == 0:
    _collect(address, count, seconds, deadline)
  else:
    _announce(address, process_id, count, seconds, deadline)


def _collect(address: str, count: int, seconds: float, deadline: float) -> None:
  """In the first process: waits for the others and sends them the outcome."""
  with contextlib.ExitStack() as opened:
    listener = opened.enter_context(_listener(address))
    present: set[int] = set()
    waiting: list[socket.socket] = []
    fault = ''
    while len(present) < count - 1 and not fault:
      listener.settimeout(max(0.01, deadline - time.monotonic()))
      try:
        connection = opened.enter_context(listener.accept()[0])
        other, other_count = _announcement(connection, deadline)
      except TimeoutError:
        if time.monotonic() < deadline:  # Another program, which sends nothing.
          continue
        fault = _missing(address, count, seconds, present)
      except (OSError, ValueError, TypeError):  # Another program.
        continue
      else:
        if other_count != count:
          fault = f'num_processes: {other_count} in process {other}, {count} in first'
        elif other in present or not 0 < other < count:
          fault = f'process_id: two are {other}; number them from 0 to {count - 1}'
        present.add(other)
        waiting.append(connection)
    for connection in waiting:
      _answer(connection, fault)
  if fault:
    raise UserError(fault)


def _announce(
  address: str, process_id: int, count: int, seconds: float, deadline: float
) -> None:
  """In all other processes: sends the id and waits for the outcome."""
  host, _, port = address.rpartition(':')
  reason, began = 'no time was left', time.monotonic()
  while (left := deadline - time.monotonic()) > 0:
    try:
      place = (host.strip('[]'), int(port))
      with socket.create_connection(place, timeout=left) as connection:
        connection.sendall(json.dumps([process_id, count]).encode() + b'\n')
        # The first process may have started to wait later.
        connection.settimeout(left + seconds)
        fault = _received(connection)
    except (OSError, ValueError) as e:
      reason = str(getattr(e, 'strerror', None) or e)
      if time.monotonic() - began > _LOCAL_SECONDS and _names_this_machine(host):
        raise UserError(
          f'coordinator_address: {host} is this machine, without process 0; '
          'give an address that all machines can reach'
        ) from e
      time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
      continue
    if fault:
      raise UserError(str(fault))
    return
  raise UserError(
    f'coordinator_address: {address} did not answer within {seconds:g} s ({reason})'
  )


def _names_this_machine(host: str) -> bool:
  """True for a name, such as localhost, of the loopback address only."""
  with contextlib.suppress(ValueError):
    ipaddress.ip_address(host.strip('[]'))
    return False
  with contextlib.suppress(OSError):
    places = socket.getaddrinfo(host, None)
    return all(ipaddress.ip_address(place[4][0]).is_loopback for place in places)
  return False


def _listener(address: str) -> socket.socket:
  """A socket at the port: of this machine only, or on all networks."""
  host, _, number = address.rpartition(':')
  port = int(number)
  try:
    if host == '127.0.0.1':
      return socket.create_server((host, port))
    if socket.has_dualstack_ipv6():
      family = socket.AF_INET6
      return socket.create_server(('', port), family=family, dualstack_ipv6=True)
    return socket.create_server(('', port))
  except OSError as e:
    message = f'coordinator_address: cannot listen at {address} ({e.strerror})'
    raise UserError(f'{message}; choose another port') from e


def _announcement(connection: socket.socket, deadline: float) -> tuple[int, int]:
  """Id of the connected process, and the number of processes that it expects."""
  connection.settimeout(max(0.01, min(5.0, deadline - time.monotonic())))
  process_id, count = _received(connection)
  return int(process_id), int(count)


def _answer(connection: socket.socket, fault: str) -> None:
  with contextlib.suppress(OSError):  # It has ended; JAX will detect that.
    connection.sendall(json.dumps(fault).encode() + b'\n')


def _received(connection: socket.socket) -> Any:
  """The JSON value of the next received line; raises `ValueError`."""
  with connection.makefile('rb') as file:
    return json.loads(file.readline(_MAX_BYTES))


def _missing(address: str, count: int, seconds: float, present: set[int]) -> str:
  """The error message for missing processes."""
  absent = [str(i) for i in range(1, count) if i not in present]
  some = ', '.join(absent[:10]) + (' and others' if len(absent) > 10 else '')
  return (
    f'num_processes: process {some} did not come to {address} within {seconds:g} s; '
    f'start all {count}'
  )
