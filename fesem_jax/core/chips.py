"""TPUs that programs can be compiled for, with their vendor's figures."""

from typing import NamedTuple

_GIB = 2**30


class Chip(NamedTuple):
  """One chip.

  Attributes:
    memory: bytes.
    kind: its name in JAX.
    example: a topology of such chips.
  """

  memory: int
  kind: str
  example: str


# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
CHIPS = {
  'v4': Chip(32 * _GIB, 'TPU v4', 'v4:2x2x1'),
  'v5e': Chip(16 * _GIB, 'TPU v5 lite', 'v5e:2x4'),
  'v5p': Chip(95 * _GIB, 'TPU v5', 'v5p:2x2x1'),
  'v6e': Chip(32 * _GIB, 'TPU v6 lite', 'v6e:2x4'),
}


def memory_of(kind: str) -> int | None:
  """Bytes of memory of a chip that JAX calls `kind`; None if it is not known."""
  return next((chip.memory for chip in CHIPS.values() if chip.kind == kind), None)
