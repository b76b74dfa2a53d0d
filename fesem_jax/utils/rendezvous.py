"""Rendezvous of the processes before JAX connects them.

`jax.distributed.initialize` cannot do this alone. With JAX 0.10.2 and 0.12.0 and an
`initialization_timeout`, a process ends by SIGABRT and a C++ trace if the coordinator
or another process is missing or if two processes have the same id, and by SIGSEGV if
the port is taken; processes that disagree on their number are connected. Here the first
process listens at the coordinator's address until all others have sent their ids,
answers them, and releases the address to JAX.
"""

import contextlib
import json
import socket
import time
from typing import Any

from fesem_jax.utils.display import listed
from fesem_jax.utils.errors import UserError

_MAX_BYTES = 1000  # Of a message.
_RETRY_SECONDS = 0.2
# Process 0 is expected within this at a name of this machine.
_LOCAL_SECONDS = 8.0


def wait_for_all(address: str, process_id: int, count: int, seconds: float) -> None:
  """Waits until all `count` processes are present and agree on their number.

  Raises `UserError` in every process that is present if others are missing after
  `seconds`, or if they disagree.
  """
  if process_id == 0:
    fault = _collect(address, count, seconds)
  else:
    fault = _announce(address, process_id, count, seconds)
  if fault:
    raise UserError(fault)


def _collect(address: str, count: int, seconds: float) -> str:
  """In the first process: waits for the others and sends them the outcome."""
  deadline, fault = time.monotonic() + seconds, ''
  with contextlib.ExitStack() as opened:
    listener = opened.enter_context(_listener(address))
    connections = dict[int, socket.socket]()
    while len(connections) < count - 1 and not fault:
      listener.settimeout(max(0.01, deadline - time.monotonic()))
      try:
        connection, (place, *_) = listener.accept()
        opened.enter_context(connection)
        connection.settimeout(max(0.01, min(5.0, deadline - time.monotonic())))
        other, other_count = map(int, _received(connection))
      except TimeoutError:
        if time.monotonic() < deadline:  # Another program, which sends nothing.
          continue
        missing = listed([i for i in range(1, count) if i not in connections], 10)
        fault = f'num_processes: process {missing} did not come to {address} within '
        fault += f'{seconds:g} s; start all {count}'
      except (OSError, ValueError, TypeError):  # Another program.
        continue
      else:
        if other_count != count:
          fault = f'num_processes: {other_count} in process {other}, {count} in first'
        elif other in connections or not 0 < other < count:
          fault = f'process_id: two are {other}; number them from 0 to {count - 1}'
          other = count  # Both are answered.
        elif _is_local_name(address) and not place.endswith(('127.0.0.1', '::1')):
          fault = f'coordinator_address: {address} is 127.* in first; give its IP'
        connections[other] = connection
    for connection in connections.values():
      with contextlib.suppress(OSError):  # It has ended; JAX will detect that.
        connection.sendall(json.dumps(fault).encode() + b'\n')
  return fault


def _announce(address: str, process_id: int, count: int, seconds: float) -> str:
  """In all other processes: sends the id and waits for the outcome."""
  host, _, port = address.rpartition(':')
  began, reason = time.monotonic(), 'no time was left'
  while (left := began + seconds - time.monotonic()) > 0:
    try:
      place = (host.strip('[]'), int(port))
      with socket.create_connection(place, timeout=left) as connection:
        connection.sendall(json.dumps([process_id, count]).encode() + b'\n')
        # The first process may have started to wait later.
        connection.settimeout(left + seconds)
        return str(_received(connection))
    except (OSError, ValueError) as e:
      reason = str(getattr(e, 'strerror', None) or e)
      if time.monotonic() - began > _LOCAL_SECONDS and _is_local_name(address):
        return f'coordinator_address: {host} has no process 0 here; give its address'
      time.sleep(min(_RETRY_SECONDS, left))
  return (
    f'coordinator_address: {address} did not answer within {seconds:g} s ({reason})'
  )


def _is_local_name(address: str) -> bool:
  """True if the host of an address is a name, and means this machine by loopback."""
  host = address.rpartition(':')[0]
  with contextlib.suppress(OSError):
    return not host[0].isdigit() and socket.gethostbyname(host).startswith('127.')
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


def _received(connection: socket.socket) -> Any:
  """The JSON value of the next received line; raises `ValueError`."""
  with connection.makefile('rb') as file:
    return json.loads(file.readline(_MAX_BYTES))
