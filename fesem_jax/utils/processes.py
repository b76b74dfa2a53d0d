"""Several processes, each with devices of its own, that run one simulation together.

Every process calls the same functions of the library in the same order. The first
process writes files and broadcasts values that are not computed, such as the content of
a workdir. With one process, these functions are no-ops.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fesem_jax.utils.errors import UserError, check

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


def initialize(group: Group) -> None:
  """Connects to the other processes; call it before any other use of JAX.

  With one process, the call is a no-op. CPU devices exchange arrays by Gloo. JAX aborts
  processes that wait for others for five minutes.

  Raises:
    UserError: if JAX cannot detect the processes or listen at the address.
  """
  address, process_id, number = group
  is_auto = address == 'auto'
  valid = is_auto or address.rpartition(':')[2].isdecimal()
  valid |= not address and process_id < 0 and number < 2
  check(valid, 'coordinator_address: several processes need HOST:PORT of the first')
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
      heartbeat_timeout_seconds=60,  # The others end if one of them is dead.
    )
  except (ValueError, RuntimeError) as e:
    text = f'coordinator_address: {address} failed ({e!s:.70})'
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


def on_host(tree: Any) -> Any:
  """The complete arrays of a tree, on the host of every process."""

  def gathered(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
      return x
    return multihost_utils.process_allgather(x, tiled=True)

  return jax.device_get(jax.tree.map(gathered, tree))


def from_first(make: Callable[[], _Value]) -> _Value:
  """Calls `make` in the first process and broadcasts its value to all processes.

  The value must be serializable as JSON. If `make` raises, the other processes raise
  `FirstProcessFailed`.
  """
  if count() == 1:
    return make()
  message, error = '', None
  if is_first():
    try:
      message = json.dumps({'value': make()})
    except BaseException as e:  # Otherwise the others would wait forever.
      message, error = json.dumps({'error': str(e)}), e
  content = json.loads(_broadcast(message.encode()))
  if error is not None:
    raise error
  if 'error' in content:
    raise FirstProcessFailed(content['error'])
  return content['value']


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
  if (digests != digests[0]).any():
    raise error_in_all(f'processes: differ in {what}; use the same command')


def _broadcast(message: bytes) -> bytes:
  """Sends the message of the first process to every process."""
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
  # Padded to powers of two, as every size is compiled.
  padded = np.frombuffer(message.ljust(1 << size.bit_length(), b'\0'), np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()[:size]
