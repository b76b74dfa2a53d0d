"""Programs that do not fit the devices are refused before they run."""

from typing import Any

import jax

from fesem_jax.core import sharding
from fesem_jax.run.program_memory import Needs, bytes_of_shard, compiled_to_fit
from fesem_jax.utils import processes
from fesem_jax.utils.display import in_bytes
from fesem_jax.utils.errors import UserError

_REMEDIES = (
  'Lower `clients_per_chunk` (for the start of FeSEM, `init_clients`), keep the '
  "clients' models in the host's memory (`client_state=offloaded`) or not at all "
  '(`client_state=streamed`), or split the data (`data_placement=sharded`).'
)


class TooLarge(UserError):  # noqa: N818 - what a program is.
  """A program that needs more memory than a device has.

  Attributes:
    name: of the program: 'start', 'round', 'evaluation', ...
    needs: of each device.
    memory: bytes of a device; None if it does not say.
  """

  def __init__(self, what: str, needs: Needs, memory: int | None):
    has = '' if memory is None else f'; it has {in_bytes(memory)}'
    super().__init__(
      f'{what[0].upper()}{what[1:]} needs {in_bytes(needs.peak)} of each '
      f'device{has}. {_REMEDIES} `fesem-plan` with the same flags says what would fit.'
    )
    self.name, self.needs, self.memory = what.split()[-1], needs, memory


def compile_to_fit(lowered: jax.stages.Lowered, args: Any, what: str) -> Any:
  """Compiles a program for the devices of its arguments.

  Args:
    lowered: the program.
    args: tree of arrays that it will be called with, or of their shapes and shardings.
    what: it does, for errors.

  Raises:
    TooLarge: if it needs more memory than a device has, by its compiler's count.
  """
  leaves = jax.tree.leaves(args)
  arrays = [x for x in leaves if getattr(x, 'sharding', None) is not None]
  # Of this process; those of others do not say.
  own = arrays[0].sharding.addressable_devices if arrays else jax.local_devices()
  memory = sharding.memory(next(iter(own)), len(own) * processes.on_this_machine())
  compiled, needs = compiled_to_fit(lowered, arrays)
  too_large = memory is not None and needs.peak - _shared(arrays) > memory
  if compiled is None or too_large:
    raise TooLarge(what, needs, memory)
  return compiled


def _shared(arrays: list[Any]) -> int:
  """Bytes of a CPU device's arguments that it has in common with others."""
  found = 0.0
  for x in arrays:
    count = len(x.sharding.addressable_devices)
    some: Any = next(iter(x.sharding.addressable_devices))
    if some.platform == 'cpu' and x.sharding.is_fully_replicated:
      found += bytes_of_shard(x) * (1 - 1 / count)
  return int(found)
