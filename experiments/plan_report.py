"""A plan as JSON, as text, and several of them as a table and a picture."""

from collections.abc import Sequence
from typing import Any

import jax

from fesem_jax.planning import fit_advice, topologies
from fesem_jax.planning.planner import Plan
from fesem_jax.utils.display import in_bytes


def report(
  found: Plan,
  num_clients: int,
  topology: str,
  mesh: jax.sharding.Mesh,
  memory: int | None,
) -> dict[str, Any]:
  """A plan as JSON can hold it.

  Args:
    found: the plan.
    num_clients: M.
    topology: that it is for.
    mesh: its devices.
    memory: bytes of each; None if it is not known.
  """
  chip = topologies.chip_of(topology)
  needs = found.round.needs
  advice = None if memory is None else fit_advice.advice(found, memory, mesh.size)
  return {
    'num_clients': num_clients,
    'topology': topology,
    'device': mesh.devices.flat[0].device_kind,
    'num_devices': mesh.size,
    'chip_bytes': memory,
    'fits': None if advice is None else not advice,
    'peak_bytes': found.peak,
    'model_bytes': found.model,
    'stack_bytes': found.stack,
    'stack_padding_bytes': dict(found.padding),
    'offloaded_bytes': found.offloaded,
    'state_bytes': found.state,
    'data_bytes': found.data,
    'data_placement': found.data_placement,
    'clients_per_device': found.clients,
    'clients_per_chunk': found.together,
    'temporary_bytes_per_client': needs.temporaries // max(1, found.together),
    'collectives': needs.exchanged(),
    'to_host': needs.to_host,
    'compile_seconds': sum(p.seconds for p in found.programs),
    'operations_per_client_step': found.work.operations,
    'bytes_per_client_step': found.work.bytes,
    'steps_per_round': found.work.steps * mesh.size,
    'passes': found.work.passes,
    'seconds_per_round': None
    if chip is None
    else fit_advice.seconds_per_round(found, chip),
    'advice': advice or [],
    'programs': {
      p.name: {
        'peak_bytes': p.needs.peak,
        'argument_bytes': p.needs.arguments,
        'temporary_bytes': p.needs.temporaries,
        'aliased_bytes': p.needs.aliased,
        'host_bytes': p.needs.on_host,
        'operations': p.needs.operations,
        'bytes': p.needs.bytes,
        'collectives': p.needs.exchanged(),
        'compile_seconds': p.seconds,
      }
      for p in found.programs
    },
  }


def text(made: dict[str, Any]) -> str:
  """A plan for people."""
  lines = [
    f'{made["num_devices"]} x {made["device"]}, each with '
    f'{made["clients_per_device"]:,} clients of a round, {made["clients_per_chunk"]:,} '
    'side by side; on each:',
    '',
    f'{"program":12}{"peak":>12}{"arguments":>12}{"temporary":>12}{"compiled in":>14}',
  ]
  for name, program in made['programs'].items():
    sizes = (program[f'{kind}_bytes'] for kind in ('peak', 'argument', 'temporary'))
    cells = ''.join(f'{in_bytes(size):>12}' for size in sizes)
    lines.append(f'{name:12}{cells}{program["compile_seconds"]:>12.1f} s')
  lines += [
    '',
    f'local models   {in_bytes(made["stack_bytes"])} of a state of '
    f'{in_bytes(made["state_bytes"])}; one model {in_bytes(made["model_bytes"])}',
    *_padding(made),
    f'data           {in_bytes(made["data_bytes"])}, {made["data_placement"]}',
    f'a client       {in_bytes(made["temporary_bytes_per_client"])} while it trains',
    f'a local step   {made["operations_per_client_step"] / 1e6:,.1f} MFLOP, '
    f'{in_bytes(made["bytes_per_client_step"])} of parameters read and written',
  ]
  if made['offloaded_bytes']:
    held = in_bytes(made['offloaded_bytes'])
    lines.append(f'host memory    {held} of local models, for each chip')
  exchanged = [
    f'{entry["count"]} {kind} of {in_bytes(entry["bytes"])}'
    for kind, entry in made['collectives'].items()
  ]
  lines.append(f'exchanges      {", ".join(exchanged) or "none"} a round')
  if made['seconds_per_round'] is not None:
    lines.append(
      f'a round        {made["seconds_per_round"]:.3g} s or more for '
      f'{made["steps_per_round"]:,.0f} client steps (products at the stated speed of '
      f'bfloat16 in {made["passes"]} pass(es), parameters at that of the memory)'
    )
  lines.append('')
  if made['chip_bytes'] is None:
    lines.append(
      f'Needs {in_bytes(made["peak_bytes"])}; this device does not say its own.'
    )
  elif made['fits']:
    of, share = in_bytes(made['chip_bytes']), made['peak_bytes'] / made['chip_bytes']
    lines.append(f'Fits: {in_bytes(made["peak_bytes"])} of {of} ({100 * share:.0f} %).')
  else:
    lines.append(
      f'Does not fit: {in_bytes(made["peak_bytes"])} are needed, the device has '
      f'{in_bytes(made["chip_bytes"])}. What would make it fit:'
    )
    lines += [f'  {sentence}' for sentence in made['advice']]
  return '\n'.join(lines)


def _padding(made: dict[str, Any]) -> list[str]:
  """What layers of the clients' models take beyond their numbers, if they do."""
  padding = made['stack_padding_bytes']
  if not padding:
    return []
  whole = sum(padding.values())
  most = max(padding, key=padding.__getitem__)
  return [
    f'padding        {in_bytes(whole)} beside the local models, '
    f'{100 * whole / made["stack_bytes"]:.1f} %; most for {most}, '
    f'{in_bytes(padding[most])}'
  ]


_COLUMNS = (
  'clients', 'topology', 'peak', 'of the chip', 'local models', 'a client trains in',
  'a round', 'compiled in',
)  # fmt: skip


def table(plans: Sequence[dict[str, Any]]) -> str:
  """Plans for several numbers of clients and several topologies, side by side."""
  rows = [_COLUMNS]
  for made in plans:
    memory, seconds = made['chip_bytes'], made['seconds_per_round']
    share = '' if memory is None else f'{100 * made["peak_bytes"] / memory:.0f} %'
    rows.append(
      (
        f'{made["num_clients"]:,}',
        made['topology'],
        in_bytes(made['peak_bytes']),
        f'{share}, does not fit' if made['fits'] is False else share,
        in_bytes(made['stack_bytes']),
        in_bytes(made['temporary_bytes_per_client']),
        '' if seconds is None else f'{seconds:.3g} s',
        f'{made["compile_seconds"]:.0f} s',
      )
    )
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    for row in rows
  )
