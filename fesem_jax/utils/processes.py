"""Several processes, each with devices of its own, that run one simulation together.

Every process calls the same functions of the library in the same order. The first
process writes files and broadcasts values that are not computed, such as the content of
a workdir. With one process, these functions are no-ops.
"""

import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fesem_jax.utils.errors import UserError, check

AUTO = 'auto'

# A process without a heartbeat for this long counts as dead, and the others end.
HEARTBEAT_SECONDS = 60
_PARTING_SECONDS = 3

# In error messages of JAX after the loss of another process.
_LOSS = re.compile(r'Gloo|NCCL|coordination service', re.IGNORECASE)

_Value = TypeVar('_Value')


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
    if address in ('', AUTO):
      alone = address or (process_id < 0 and number < 2)
      check(alone, 'coordinator_address: several processes need HOST:PORT of the first')
      return
    right = address.rpartition(':')[2].isdecimal()
    check(right, f'coordinator_address: {address} is not HOST:PORT or {AUTO}')
    text = f'process_id: {process_id} of {number} processes; number them from 0'
    check(0 <= process_id < number, text)


def initialize(group: Group) -> None:
  """Connects to the other processes; call it before any other use of JAX.

  With one process, the call is a no-op. CPU devices exchange arrays by Gloo. JAX aborts
  processes that wait for others for five minutes.

  Raises:
    UserError: if the values of `group` are inconsistent, or if JAX cannot detect the
      processes or listen at the address.
  """
  group.check()
  address, process_id, number = group
  is_auto = address == AUTO
  if not is_auto and (not address or number == 1):
    return
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # Otherwise JAX treats SIGTERM as a preemption notice and the process continues.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      None if is_auto else address,
      number or None,
      None if process_id < 0 else process_id,
      cluster_detection_method=None if is_auto else 'deactivate',
      heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
  except (ValueError, RuntimeError) as e:
    text = f'coordinator_address: {address} failed ({e!s:.40}); choose another'
    raise UserError(text) from e


def count() -> int:
  """Number of processes that run together."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def _gathered(x: np.ndarray) -> np.ndarray:
  """The arrays of all processes, of one shape, along a new first axis."""
  return multihost_utils.process_allgather(x) if count() > 1 else x[None]


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
  return bool(_gathered(np.array(flag)).any())


def total(x: np.ndarray) -> np.ndarray:
  """The sum of the arrays of all processes, which have the same shape."""
  return _gathered(x).sum(axis=0, dtype=x.dtype)


def check_same(what: str, value: Any) -> None:
  """Raises `UserError` in every process unless `value` is the same in all processes.

  `what` describes the value in the message. The value must be serializable as JSON.
  """
  text = json.dumps(value, sort_keys=True).encode()
  digests = _gathered(np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
  if differs := np.flatnonzero((digests != digests[0]).any(axis=1)).tolist():
    raise error_in_all(
      f'process {differs[0]}: differs from the first in {what}; use the same command'
    )


def _broadcast(message: bytes) -> bytes:
  """Sends the message of the first process to every process."""
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
  # Padded to powers of two, as every size is compiled.
  padded = np.frombuffer(message.ljust(1 << size.bit_length(), b'\0'), np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()[:size]
