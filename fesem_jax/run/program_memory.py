"""What a compiled program needs of each device: memory, operations, collectives."""

import math
import re
from typing import Any, NamedTuple

import jax

_BYTES = {
  'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'f16': 2, 'bf16': 2, 's32': 4,
  'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8,
}  # fmt: skip

_COLLECTIVES = (
  'all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter',
)  # fmt: skip
_COLLECTIVE = re.compile(rf'= (.*?) ({"|".join(_COLLECTIVES)})(?:-start)?\(')
_REFUSED = re.compile(
  r'RESOURCE_EXHAUSTED.*?required.*?\(([\d.]+)([KMGT])\)', re.DOTALL
)
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\]')
# What would leave the device in the middle of a program.
_TO_HOST = re.compile(
  r' (infeed|outfeed|send|recv)\(|custom_call_target="[^"]*(?:callback|host)[^"]*"'
)


class Collective(NamedTuple):
  """An exchange between devices in a program's text, counted once even in a loop.

  Attributes:
    kind: e.g. 'all-reduce'.
    bytes: of its result on each device.
  """

  kind: str
  bytes: int


class Needs(NamedTuple):
  """What one program needs of each device.

  Attributes:
    arguments: bytes of what it is given.
    outputs: bytes of what it gives.
    aliased: bytes of outputs in the memory of arguments.
    temporaries: bytes while it runs.
    operations: additions and multiplications; each loop's body counts once.
    bytes: read and written; each loop's body counts once.
    collectives: exchanges with other devices.
    to_host: instructions that would wait for the host.
    on_host: bytes of the host's memory for this device, arguments included.
  """

  arguments: int
  outputs: int
  aliased: int
  temporaries: int
  operations: float = 0.0
  bytes: float = 0.0
  collectives: tuple[Collective, ...] = ()
  to_host: tuple[str, ...] = ()
  on_host: int = 0

  @property
  def peak(self) -> int:
    """Bytes of a device while the program runs, all that it holds included."""
    return self.arguments + self.outputs - self.aliased + self.temporaries

  def exchanged(self) -> dict[str, dict[str, int]]:
    """Kind of collective -> its count, and the bytes of all and of the largest."""
    found: dict[str, dict[str, int]] = {}
    for kind, size in self.collectives:
      entry = found.setdefault(kind, {'count': 0, 'bytes': 0, 'largest_bytes': 0})
      entry['count'] += 1
      entry['bytes'] += size
      entry['largest_bytes'] = max(entry['largest_bytes'], size)
    return found


def needs_of(compiled: jax.stages.Compiled, text: str) -> Needs:
  """What a compiled program needs, by the compiler's own count.

  Args:
    compiled: the program.
    text: of it.
  """
  costs: Any = compiled.cost_analysis() or {}
  if isinstance(costs, list):
    costs = costs[0]
  return memory_of(compiled)._replace(
    operations=float(costs.get('flops', 0.0)),
    bytes=float(costs.get('bytes accessed', 0.0)),
    collectives=collectives_of(text),
    to_host=tuple(sorted({m.group(0).strip() for m in _TO_HOST.finditer(text)})),
  )


def memory_of(compiled: jax.stages.Compiled) -> Needs:
  """The memory that a compiled program needs, alone; quick."""
  memory: Any = compiled.memory_analysis()
  on_host = (
    memory.host_argument_size_in_bytes
    + memory.host_output_size_in_bytes
    - memory.host_alias_size_in_bytes
    + memory.host_temp_size_in_bytes
  )
  return Needs(
    int(memory.argument_size_in_bytes),
    int(memory.output_size_in_bytes),
    int(memory.alias_size_in_bytes),
    int(memory.temp_size_in_bytes),
    on_host=int(on_host),
  )


def needs_told(error: str, arguments: int) -> Needs | None:
  """What a program needs that the compiler refused for its memory.

  Args:
    error: what the compiler said.
    arguments: bytes of what the program is given.

  Returns:
    Bytes only; None if the error is another one.
  """
  match = _REFUSED.search(error)
  if match is None:
    return None
  amount, unit = match.groups()
  temporaries = int(float(amount) * 1024 ** ('KMGT'.index(unit) + 1))
  return Needs(arguments, 0, 0, temporaries)


def collectives_of(text: str) -> tuple[Collective, ...]:
  """The collectives of a program's text, with the bytes of their results."""
  found = []
  for line in text.splitlines():
    match = _COLLECTIVE.search(line)
    if match is None:
      continue
    shapes, kind = match.groups()
    size = 0
    for dtype, dims in _ARRAY.findall(shapes):
      if dtype in _BYTES:
        size += _BYTES[dtype] * math.prod(int(d) for d in dims.split(',') if d)
    found.append(Collective(kind, size))
  return tuple(found)


def compiled_to_fit(
  lowered: jax.stages.Lowered, args: Any
) -> tuple[jax.stages.Compiled | None, Needs]:
  """Compiles a program, and says what memory it needs.

  Args:
    lowered: the program.
    args: tree of arrays or shapes that it takes.

  Returns:
    The program, or None if the compiler refused it for its memory; and what it needs,
    bytes only.
  """
  try:
    made = lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    told = needs_told(str(e), sum(map(bytes_on_device, jax.tree.leaves(args))))
    if told is None:
      raise
    return None, told
  return made, memory_of(made)


def bytes_of_shard(x: Any) -> int:
  """Bytes of a device's part of an array, in whichever memory."""
  return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


def padded_bytes(x: Any, layout: Any) -> int:
  """The same as it lies in memory: the last axes come in whole tiles.

  Args:
    x: array, or its shape, with a sharding.
    layout: of a compiled program's argument (`Compiled.input_formats`).
  """
  if layout is None:
    return bytes_of_shard(x)
  shape = x.sharding.shard_shape(x.shape)
  sizes = [shape[axis] for axis in layout.major_to_minor]
  for tile in (layout.tiling or ())[:1]:
    for i in range(1, min(len(tile), len(sizes)) + 1):
      sizes[-i] = -(-sizes[-i] // tile[-i]) * tile[-i]
  return math.prod(sizes) * x.dtype.itemsize


def is_on_host(x: Any) -> bool:
  """Whether an array is in the memory of the devices' host."""
  return x.sharding.memory_kind == 'pinned_host'


def bytes_on_device(x: Any) -> int:
  """Bytes of an array in the memory of each device."""
  return 0 if is_on_host(x) else bytes_of_shard(x)
