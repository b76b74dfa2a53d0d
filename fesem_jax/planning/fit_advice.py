"""Flags that make a run fit its devices."""

import math

from fesem_jax.planning.planner import Plan
from fesem_jax.utils.display import in_bytes


def advice(plan: Plan, memory: int, num_devices: int) -> list[str]:
  """One sentence for each flag that makes a run fit; none if it fits already.

  `memory` is the number of bytes of each of the `num_devices` devices.
  """
  refused = any(p.refused for p in plan.programs)
  if plan.peak_bytes <= memory and not refused:
    return []
  if refused:  # The compiler keeps some memory for itself.
    memory = min(memory, plan.peak_bytes - 1)
  start, worst = plan.programs[0], max(plan.programs, key=plan.peak_of)
  taken = start.memory.temporaries
  room = memory - plan.peak_of(start) + taken
  if start.name == 'start' and 0 < room < taken:
    return [
      f'--init_clients: the start needs {in_bytes(taken)} for the models of the first '
      f'clustering; {100 * room / taken:.0f} % of them fit.'
    ]
  sentences = []
  each = worst.memory.temporaries / max(1, plan.clients_per_chunk)
  room = memory - plan.peak_of(worst) + worst.memory.temporaries
  if each <= room:
    sentences.append(
      f'--clients_per_chunk={int(room / each)}: training a client needs '
      f'{in_bytes(each)} of the {in_bytes(room)} available.'
    )
  excess = plan.peak_bytes - memory
  on_each = plan.data_bytes / num_devices
  if plan.data_placement == 'replicated' and excess <= plan.data_bytes - on_each:
    sentences.append(
      f'--data_placement=sharded: each device holds {in_bytes(on_each)} of data '
      f'instead of {in_bytes(plan.data_bytes)}.'
    )
  if plan.stack_bytes and excess <= plan.stack_bytes:
    stack = in_bytes(plan.stack_bytes)
    sentences += [
      f'--client_state=offloaded (FeSEM, NonFed, Ditto, SCAFFOLD, FedDyn): {stack} of '
      'local models move to host memory.',
      f'--client_state=streamed (FeSEM only): {stack} of local models are not stored.',
    ]
  if excess < plan.stack_bytes:
    whole = plan.stack_bytes * num_devices
    devices = math.ceil(whole / (plan.stack_bytes - excess))
    sentences.append(
      f'{devices} chips instead of {num_devices}: each holds '
      f'{in_bytes(whole / devices)} of local models.'
    )
  return sentences or ['A smaller model, or chips with more memory.']
