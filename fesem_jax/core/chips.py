"""TPU chips for compilation ahead of time, with the vendor's specifications."""

from typing import NamedTuple

_GIB = 2**30


class Chip(NamedTuple):
  """One chip."""

  memory: int  # bytes
  kind: str  # its name in JAX
  example: str  # a topology of these chips


# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
CHIPS = {
  'v4': Chip(32 * _GIB, 'TPU v4', 'v4:2x2x1'),
  'v5e': Chip(16 * _GIB, 'TPU v5 lite', 'v5e:2x4'),
  'v5p': Chip(95 * _GIB, 'TPU v5', 'v5p:2x2x1'),
  'v6e': Chip(32 * _GIB, 'TPU v6 lite', 'v6e:2x4'),
}


def memory_of(kind: str) -> int | None:
  """Memory in bytes of a chip that JAX calls `kind`; None if unknown."""
  return next((chip.memory for chip in CHIPS.values() if chip.kind == kind), None)
