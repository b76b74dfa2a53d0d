"""What a plan means: seconds of a round, and what makes a run fit."""

import math

from fesem_jax.core.chips import Chip
from fesem_jax.planning.planner import Plan
from fesem_jax.utils.display import in_bytes


def seconds_per_round(found: Plan, chip: Chip) -> float:
  """A bound from below, if operations and memory keep a chip at its stated speeds.

  Every step's products take `Work.passes` passes of bfloat16 products at the chip's
  speed, or its parameters move at the memory's, whichever takes longer; the E- and
  M-step read each local model twice; sums over chips are on top. Activations, the
  order of examples and waits are not counted.
  """
  work = found.work
  step = max(
    work.operations * work.passes / chip.operations, work.bytes / chip.bandwidth
  )
  models = 2 * found.clients * found.model / chip.bandwidth
  sums = sum(c.bytes for c in found.round.needs.collectives) / chip.links
  return work.steps * step + models + sums


def advice(found: Plan, memory: int, num_devices: int) -> list[str]:
  """What makes a run fit that needs more than `memory` bytes of each device.

  Args:
    found: the plan.
    memory: bytes of a device.
    num_devices: D.

  Returns:
    Sentences with the flags to change; empty where it fits.
  """
  if found.peak <= memory and not any(p.refused for p in found.programs):
    return []
  if any(p.refused for p in found.programs):  # A compiler keeps some for itself.
    memory = min(memory, found.peak - 1)
  worst = max(found.programs, key=found.peak_of)
  start = found.programs[0]
  room = memory - (found.peak_of(start) - start.needs.temporaries)
  if start.name == 'start' and 0 < room < start.needs.temporaries:
    share = 100 * room / start.needs.temporaries
    taken = in_bytes(start.needs.temporaries)
    return [
      f'The start takes {taken} beside its arguments: its first clustering holds the '
      f'models of --init_clients, of which {share:.0f} % would fit.'
    ]
  each = worst.needs.temporaries / max(1, found.together)
  rest = found.peak_of(worst) - worst.needs.temporaries
  sentences = []
  if rest + each <= memory:
    room = int((memory - rest) / each)
    sentences.append(
      f'--clients_per_chunk={room}: a client that trains needs {in_bytes(each)}, and '
      f'{in_bytes(memory - rest)} are left for them.'
    )
  if found.data_placement == 'replicated' and num_devices > 1:
    on_each = found.data / num_devices
    if found.peak - found.data + on_each <= memory:
      sentences.append(
        f'--data_placement=sharded: each device holds {in_bytes(on_each)} of data '
        f'instead of {in_bytes(found.data)}.'
      )
  if found.stack:
    others = found.peak - found.stack
    if others <= memory:
      sentences.append(
        f'--client_state=offloaded (FeSEM, NonFed, Ditto, SCAFFOLD): '
        f"{in_bytes(found.stack)} of local models are kept in the host's memory."
      )
      sentences.append(
        f'--client_state=streamed (FeSEM only): {in_bytes(found.stack)} of local '
        f'models are not kept and {in_bytes(others)} are left.'
      )
    if others < memory:
      devices = math.ceil(found.stack * num_devices / (memory - others))
      sentences.append(
        f'{devices} chips instead of {num_devices}, which then hold '
        f'{in_bytes(found.stack * num_devices / devices)} of local models each.'
      )
  if not sentences:
    sentences.append('A smaller model, or chips of more memory.')
  return sentences
