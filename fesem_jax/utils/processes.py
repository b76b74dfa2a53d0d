"""Several processes, each with devices of its own, that run one simulation together.

Every process calls the same functions of the library in the same order. The first
process writes files and broadcasts values that are not computed, such as the content of
a workdir. With one process, these functions are no-ops.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fesem_jax.utils import rendezvous
from fesem_jax.utils.errors import UserError, argument

AUTO = 'auto'

# A process without a heartbeat for this long counts as dead, and the others end.
HEARTBEAT_SECONDS = 60
# The time for which processes wait for each other at the start.
MEETING_SECONDS = 120

_PARTING_SECONDS = 3

# In error messages of JAX after the loss of another process.
_LOSS = re.compile(r'Gloo|NCCL|coordination service', re.IGNORECASE)

_Value = TypeVar('_Value')

# Broadcast messages begin with their length; the first packet has this many bytes.
_HEAD, _PACKET = 4, 1024


class FirstProcessFailed(UserError):  # noqa: N818 - the first process reports it.
  """An error that the first process reports for all processes."""


class Group(NamedTuple):
  """The processes that run together, from the view of this process.

  Attributes:
    address: HOST:PORT at which the first process waits for the others; 'auto' if JAX
      detects the processes (TPU pods, Slurm, Open MPI); '' for a single process.
    process_id: number of this process, from 0; -1 if JAX detects it.
    num_processes: number of processes; 0 if JAX detects it.
  """

  address: str = ''
  process_id: int = -1
  num_processes: int = 0

  def check(self) -> None:
    """Raises `UserError` if the three values are inconsistent."""
    address, process_id, number = self
    if not address or address == AUTO:
      if (process_id >= 0 or number > 1) and not address:
        raise UserError(
          f'{argument("process_id", process_id)} and '
          f'{argument("num_processes", number)} need `coordinator_address`, the '
          'HOST:PORT of the first process.'
        )
      return
    host, _, port = address.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port[:6]) < 2**16:
      raise UserError(
        f'{argument("coordinator_address", address)} must be HOST:PORT or {AUTO}.'
      )
    if number < 1:
      raise UserError(
        f'{argument("num_processes", number)} must say how many processes there are.'
      )
    if not 0 <= process_id < number:
      raise UserError(
        f'{argument("process_id", process_id)} must lie in 0..{number - 1}, as there '
        f'are {argument("num_processes", number)}.'
      )


def initialize(group: Group, wait_seconds: float = MEETING_SECONDS) -> None:
  """Connects to the other processes; call it before any other use of JAX.

  CPU devices exchange arrays by Gloo.

  Args:
    group: the processes; with one process, the call is a no-op.
    wait_seconds: maximum time to wait for the other processes.

  Raises:
    UserError: if the values of `group` are inconsistent or differ between processes, if
      processes are missing after that time, or if JAX cannot detect them.
  """
  group.check()
  if not group.address or (group.address != AUTO and group.num_processes == 1):
    return
  if group.address != AUTO:
    rendezvous.wait_for_all(*group, wait_seconds)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # Otherwise JAX treats SIGTERM as a preemption notice and the process continues.
  jax.config.update('jax_enable_preemption_service', False)
  options: dict[str, Any] = {'heartbeat_timeout_seconds': HEARTBEAT_SECONDS}
  if group.address == AUTO:
    _found_by_jax(group, **options)
  else:
    jax.distributed.initialize(
      *(group.address, group.num_processes, group.process_id),
      cluster_detection_method='deactivate',
      **options,
    )
  with _without_stdout():  # Gloo prints a line for every process.
    barrier('start')


def _found_by_jax(group: Group, **options: Any) -> None:
  """Connects to processes that JAX detects from the environment of the cluster."""
  number, process_id = group.num_processes or None, group.process_id
  try:
    jax.distributed.initialize(
      None, number, None if process_id < 0 else process_id, **options
    )
  except (ValueError, RuntimeError) as e:
    raise UserError(
      f'{argument("coordinator_address", AUTO)}: JAX finds no other processes here '
      f'({str(e).splitlines()[0].rstrip(".")}); give HOST:PORT, `process_id` and '
      '`num_processes`.'
    ) from e


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
  """Discards the standard output of C++ code."""
  sys.stdout.flush()
  kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nothing, 1)
    yield
  finally:
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nothing)


def count() -> int:
  """Number of processes that run together."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def on_this_machine() -> int:
  """Number of these processes on this machine, which share its memory."""
  return 1 if count() == 1 else _with_this_name()


@functools.cache  # Processes do not migrate.
def _with_this_name() -> int:
  name = platform.node()
  with contextlib.suppress(OSError):  # Containers may share a name.
    name = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text()
  digest = hashlib.sha256(name.encode()).digest()
  own = np.frombuffer(digest, np.uint8)
  digests = multihost_utils.process_allgather(own)
  return int((digests == own).all(axis=1).sum())


def is_first() -> bool:
  """True if this process is the first one, which writes files and prints."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def is_loss(error: BaseException) -> bool:
  """True if an error of JAX reports the loss of another process."""
  return count() > 1 and _LOSS.search(str(error)) is not None


def leave(code: Any) -> NoReturn:
  """Ends this process after an error, without waiting for the others.

  JAX would wait minutes for them.
  """
  for stream in (sys.stdout, sys.stderr):
    stream.flush()
  # Otherwise processes that end together report each other as dead.
  parting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
  parting.start()
  parting.join(_PARTING_SECONDS)
  os._exit(code if isinstance(code, int) else int(code is not None))


def barrier(name: str) -> None:
  """Waits until every process has called it."""
  if count() > 1:
    multihost_utils.sync_global_devices(name)


def on_host(tree: Any) -> Any:
  """The complete arrays of a tree, on the host of every process."""
  if count() == 1:
    return jax.device_get(tree)

  def whole(x: Any) -> Any:
    if isinstance(x, jax.Array) and not (
      x.is_fully_addressable or x.is_fully_replicated
    ):
      return multihost_utils.process_allgather(x, tiled=True)
    return jax.device_get(x)

  return jax.tree.map(whole, tree)


def from_first(make: Callable[[], _Value]) -> _Value:
  """Calls `make` in the first process and broadcasts its value to all processes.

  The value must be serializable as JSON. If `make` raises, the other processes raise
  `FirstProcessFailed`.
  """
  if count() == 1:
    return make()
  if not is_first():
    message = json.loads(_broadcast(b''))
    if 'error' in message:
      raise FirstProcessFailed(message['error'])
    return message['value']
  try:
    value = make()
    message = json.dumps({'value': value})
  except BaseException as e:  # Otherwise the others would wait forever.
    _broadcast(json.dumps({'error': str(e)}).encode())
    raise
  _broadcast(message.encode())
  return value


def error_in_all(sentence: str) -> UserError:
  """The exception for an error in every process; the first process reports it."""
  return UserError(sentence) if is_first() else FirstProcessFailed(sentence)


def any_of(flag: bool) -> bool:
  """True if the flag is set in any process."""
  if count() == 1:
    return flag
  return bool(multihost_utils.process_allgather(np.array(flag)).any())


def total(own: np.ndarray) -> np.ndarray:
  """The sum of one array of each process, all of the same shape."""
  if count() == 1:
    return own
  return multihost_utils.process_allgather(own).sum(axis=0, dtype=own.dtype)


def check_same(what: str, value: Any) -> None:
  """Raises `UserError` in every process unless `value` is the same in all processes.

  `what` describes the value in the message. The value must be serializable as JSON.
  """
  if count() == 1:
    return
  text = json.dumps(value, sort_keys=True).encode()
  digest = np.frombuffer(hashlib.sha256(text).digest(), np.uint8)
  digests = multihost_utils.process_allgather(digest)
  if (digests != digests[0]).any():
    other = int(np.flatnonzero((digests != digests[0]).any(axis=1))[0])
    raise error_in_all(
      f'Process {other} differs from the first process in {what}; start all of them '
      'by the same command on the same data.'
    )


def _broadcast(message: bytes) -> bytes:
  """Sends the message of the first process to every process."""
  head = len(message).to_bytes(_HEAD, 'little') + message[: _PACKET - _HEAD]
  head = _sent(head.ljust(_PACKET, b'\0'))
  size, following = int.from_bytes(head[:_HEAD], 'little'), message[_PACKET - _HEAD :]
  content = head[_HEAD:]
  if (missing := size - len(content)) > 0:
    # Rounded to powers of two, as each size is compiled.
    content += _sent(following.ljust(1 << (missing - 1).bit_length(), b'\0'))
  return content[:size]


def _sent(packet: bytes) -> bytes:
  """Broadcasts a packet of the first process; all pass packets of equal length."""
  array = np.frombuffer(packet, np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(array)).tobytes()
