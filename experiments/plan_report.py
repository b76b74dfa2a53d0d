"""Plans as JSON, as text, and side by side in a table."""

from collections.abc import Sequence
from typing import Any

import jax

from fesem_jax.run.planner import Plan, advice
from fesem_jax.run.program_memory import collectives_of
from fesem_jax.utils.display import in_bytes
from fesem_jax.utils.text_tables import aligned


def report(
  plan: Plan,
  num_clients: int,
  topology: str,
  mesh: jax.sharding.Mesh,
  memory: int | None,
) -> dict[str, Any]:
  """A plan as JSON can hold it.

  `topology` names the devices of `mesh`; `memory` is the bytes of each, None if it is
  not known.
  """
  mended = None if memory is None else advice(plan, memory, mesh.size)
  programs = {
    p.name: {
      'peak_bytes': p.memory.peak,
      'argument_bytes': p.memory.arguments,
      'temporary_bytes': p.memory.temporaries,
      'aliased_bytes': p.memory.aliased,
      'host_bytes': p.memory.on_host,
      'collectives': _by_kind(p.text),
      'compile_seconds': p.seconds,
    }
    for p in plan.programs
  }
  return {
    'num_clients': num_clients,
    'topology': topology,
    'device': mesh.devices.flat[0].device_kind,
    'num_devices': mesh.size,
    'chip_bytes': memory,
    'fits': None if mended is None else not mended,
    'advice': mended or [],
    'peak_bytes': plan.peak_bytes,
    **plan._asdict(),
    'programs': programs,
    'temporary_bytes_per_client': (
      plan.round.memory.temporaries // max(1, plan.clients_per_chunk)
    ),
    'collectives': programs['round']['collectives'],
    'compile_seconds': sum(p.seconds for p in plan.programs),
    'seconds_per_round': None,  # Compiling does not tell.
  }


def _by_kind(text: str) -> dict[str, dict[str, int]]:
  """Kind of collective -> its count, and the bytes of all and of the largest."""
  totals: dict[str, dict[str, int]] = {}
  for kind, size in collectives_of(text):
    entry = totals.setdefault(kind, {'count': 0, 'bytes': 0, 'largest_bytes': 0})
    entry['count'] += 1
    entry['bytes'] += size
    entry['largest_bytes'] = max(entry['largest_bytes'], size)
  return totals


def text(plan: dict[str, Any]) -> str:
  """A report as it is printed."""
  sizes = {name: in_bytes(plan[name]) for name in plan if name.endswith('_bytes')}
  rows = [('program', 'peak', 'arguments', 'temporary', 'compiled in')]
  for name, program in plan['programs'].items():
    kinds = (program[f'{kind}_bytes'] for kind in ('peak', 'argument', 'temporary'))
    rows.append((name, *map(in_bytes, kinds), f'{program["compile_seconds"]:.1f} s'))
  exchanged = [
    f'{entry["count"]} {kind} of {in_bytes(entry["bytes"])}'
    for kind, entry in plan['collectives'].items()
  ]
  lines = [
    f'{plan["num_devices"]} x {plan["device"]}, each with '
    f'{plan["clients_per_device"]:,} clients of a round, {plan["clients_per_chunk"]:,} '
    'side by side; on each:',
    '',
    *aligned(rows),
    '',
    f'local models   {sizes["stack_bytes"]} of a state of {sizes["state_bytes"]}; '
    f'one model {sizes["model_bytes"]}',
    f'data           {sizes["data_bytes"]}, {plan["data_placement"]}',
    f'a client       {in_bytes(plan["temporary_bytes_per_client"])} while it trains',
    f'host memory    {sizes["offloaded_bytes"]} of local models',
    f'exchanges      {", ".join(exchanged) or "none"} a round',
    '',
  ]
  if plan['fits'] is None:
    lines.append(f'Needs {sizes["peak_bytes"]}; the memory of a device is not known.')
  elif plan['fits']:
    share = 100 * plan['peak_bytes'] / plan['chip_bytes']
    lines.append(
      f'Fits: {sizes["peak_bytes"]} of {sizes["chip_bytes"]} ({share:.0f} %).'
    )
  else:
    lines.append(
      f'Does not fit: it needs {sizes["peak_bytes"]}, a device has '
      f'{sizes["chip_bytes"]}. Any of these makes it fit:'
    )
    lines += [f'  {sentence}' for sentence in plan['advice']]
  return '\n'.join(lines)


def table(plans: Sequence[dict[str, Any]]) -> str:
  """Reports for several numbers of clients and several topologies, side by side."""
  rows = [
    (
      'clients', 'topology', 'peak', 'of the chip', 'local models',
      'a client trains in', 'compiled in',
    )
  ]  # fmt: skip
  for plan in plans:
    memory = plan['chip_bytes']
    share = '' if memory is None else f'{100 * plan["peak_bytes"] / memory:.0f} %'
    rows.append(
      (
        f'{plan["num_clients"]:,}',
        plan['topology'],
        in_bytes(plan['peak_bytes']),
        f'{share}, does not fit' if plan['fits'] is False else share,
        in_bytes(plan['stack_bytes']),
        in_bytes(plan['temporary_bytes_per_client']),
        f'{plan["compile_seconds"]:.0f} s',
      )
    )
  return '\n'.join(aligned(rows))
