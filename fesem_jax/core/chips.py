"""What accelerators have, by their vendors' figures."""

from typing import NamedTuple

_GIB = 2**30


class Chip(NamedTuple):
  """One chip.

  Attributes:
    memory: bytes.
    bandwidth: bytes a second of that memory.
    operations: additions and multiplications a second in bfloat16.
    links: bytes a second to and from other chips.
    kind: its name in JAX.
    example: a topology of such chips.
  """

  memory: int
  bandwidth: float
  operations: float
  links: float
  kind: str
  example: str


# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
CHIPS = {
  'v4': Chip(32 * _GIB, 1.2e12, 275e12, 3.0e11, 'TPU v4', 'v4:2x2x1'),
  'v5e': Chip(16 * _GIB, 8.2e11, 197e12, 2.0e11, 'TPU v5 lite', 'v5e:2x4'),
  'v5p': Chip(95 * _GIB, 2.765e12, 459e12, 6.0e11, 'TPU v5', 'v5p:2x2x1'),
  'v6e': Chip(32 * _GIB, 1.64e12, 918e12, 4.48e11, 'TPU v6 lite', 'v6e:2x4'),
}

# Precision of products of float32 numbers -> how many products of bfloat16 ones they
# are on a TPU: of parts of 8 bits, 3 or 2 of each factor, less the smallest products.
PASSES = {'highest': 6, 'high': 3, 'default': 1}


def memory_of(kind: str) -> int | None:
  """Bytes of memory of a chip that JAX calls `kind`; None if it is not known."""
  return next((chip.memory for chip in CHIPS.values() if chip.kind == kind), None)
