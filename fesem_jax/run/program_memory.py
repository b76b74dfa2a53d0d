"""Memory and collectives of compiled programs; those that do not fit are refused."""

import math
import re
from typing import Any, NamedTuple

import jax

from fesem_jax.core import sharding
from fesem_jax.utils import free_memory
from fesem_jax.utils.errors import UserError

_COLLECTIVE = re.compile(
  r'= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)'
  r'(?:-start)?\('
)
_ARRAY = re.compile(r'\b(?:pred|[a-z]+(\d+))\[([\d,]*)\]')  # Its bits and shape.
_REFUSED = re.compile(
  r'RESOURCE_EXHAUSTED.*?required.*?\(([\d.]+)([KMGT])\)', re.DOTALL
)


def in_bytes(size: float) -> str:
  """A number of bytes with its unit, e.g. '3.5 GiB'."""
  for unit in ('bytes', 'KiB', 'MiB', 'GiB'):
    if abs(size) < 1024:
      return f'{size:,.0f} bytes' if unit == 'bytes' else f'{size:,.1f} {unit}'
    size /= 1024
  return f'{size:,.1f} TiB'


class ProgramMemory(NamedTuple):
  """Bytes that a program takes of each device."""

  arguments: int
  outputs: int  # of its results
  aliased: int  # of results that lie in the memory of arguments
  temporaries: int  # of everything else while it runs
  on_host: int = 0  # of the host's memory for this device, arguments included

  @property
  def peak(self) -> int:
    """Bytes of a device while the program runs, arguments and results included."""
    return self.arguments + self.outputs - self.aliased + self.temporaries


class TooLarge(UserError):  # noqa: N818 - what a program is.
  """A program that takes more memory, `memory`, than a device has."""

  def __init__(self, what: str, memory: ProgramMemory, available: int | None):
    peak, has = in_bytes(memory.peak), in_bytes(available) if available else 'less'
    remedy = 'lower clients_per_chunk or set client_state=streamed'
    super().__init__(f'{what}: needs {peak} of a device with {has}; {remedy}')
    self.memory = memory


class Collective(NamedTuple):
  """An exchange between devices; one in a loop counts once."""

  kind: str  # e.g. 'all-reduce'
  bytes: int  # of its result on each device


def memory_of(compiled: jax.stages.Compiled) -> ProgramMemory:
  """The memory of a compiled program, by its compiler's count."""
  stats: Any = compiled.memory_analysis()

  def sizes(where: str) -> list[int]:
    kinds = 'argument', 'output', 'alias', 'temp'
    return [int(getattr(stats, f'{where}{kind}_size_in_bytes')) for kind in kinds]

  arguments, outputs, aliased, temporaries = sizes('host_')
  return ProgramMemory._make([*sizes(''), arguments + outputs - aliased + temporaries])


def collectives_of(text: str) -> list[Collective]:
  """The collectives in the text of a compiled program."""
  collectives = []
  for shapes, kind in _COLLECTIVE.findall(text):
    sizes = [
      int(bits or 8) // 8 * math.prod(int(d) for d in dims.split(',') if d)
      for bits, dims in _ARRAY.findall(shapes)
    ]
    collectives.append(Collective(kind, sum(sizes)))
  return collectives


def collectives_by_kind(text: str) -> dict[str, dict[str, int]]:
  """Kind of collective in the text of a program -> its count, and the bytes of all."""
  totals: dict[str, dict[str, int]] = {}
  for kind, size in collectives_of(text):
    entry = totals.setdefault(kind, {'count': 0, 'bytes': 0})
    entry['count'] += 1
    entry['bytes'] += size
  return totals


def try_to_compile(
  lowered: jax.stages.Lowered, args: Any
) -> tuple[jax.stages.Compiled | None, ProgramMemory]:
  """The program, None if the compiler refused it for its memory; and that memory."""
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    refused = _REFUSED.search(str(e))
    if refused is None:
      raise
    amount, unit = refused.groups()
    temporaries = int(float(amount) * 1024 ** ('KMGT'.index(unit) + 1))
    arguments = sum(map(bytes_on_device, jax.tree.leaves(args)))
    return None, ProgramMemory(arguments, 0, 0, temporaries)
  return compiled, memory_of(compiled)


def compile_to_fit(lowered: jax.stages.Lowered, args: Any, what: str) -> Any:
  """Compiles a program; raises `TooLarge` if it does not fit the arguments' devices."""
  leaves = jax.tree.leaves(args)
  arrays = [x for x in leaves if getattr(x, 'sharding', None) is not None]
  # Of this process; those of others do not say.
  own = arrays[0].sharding.addressable_devices if arrays else jax.local_devices()
  available = sharding.memory(next(iter(own)), len(own))
  compiled, memory = try_to_compile(lowered, arrays)
  free_memory.give_back()
  too_large = available is not None and memory.peak - _shared(arrays) > available
  if compiled is None or too_large:
    raise TooLarge(what, memory, available)
  return compiled


def _shared(arrays: list[Any]) -> int:
  """Bytes of a CPU device's arguments that it has in common with others."""
  total = 0.0
  for x in arrays:
    devices: list[Any] = list(x.sharding.addressable_devices)
    if devices[0].platform == 'cpu' and x.sharding.is_fully_replicated:
      total += bytes_of_shard(x) * (1 - 1 / len(devices))
  return int(total)


def bytes_of_shard(x: Any) -> int:
  """Bytes of a device's part of an array, in the memory of the device or its host."""
  return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


def is_on_host(x: Any) -> bool:
  """True if an array is in the memory of the devices' host."""
  return x.sharding.memory_kind == 'pinned_host'


def bytes_on_device(x: Any) -> int:
  """Bytes of an array in the memory of each device."""
  return 0 if is_on_host(x) else bytes_of_shard(x)
