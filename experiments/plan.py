r"""Says what a run needs of each chip before it is paid for.

  python -m experiments.plan --flagfile=femnist --topology=v5e:2x4 --json=plan.json

The start, a round and the evaluation of the run that the other flags describe are
compiled for the chips of --topology, which need not be there (for TPUs, install the
extra `tpu`). Printed are, for each device: memory by program against the chip's, the
local models and the data in it; exchanges between chips; the time to compile; and a
bound from below on the seconds of a round. Where the run does not fit, flags that make
it fit are named, with numbers.

The data are needed only for their sizes: they are read where --data_dir has them; the
sizes of FEMNIST and CelebA (LEAF) are known without. --plan_clients and --plan_examples
ask for more, or fewer, of the same.

--json gets fits, peak_bytes, chip_bytes, temporary_bytes_per_client, collectives,
compile_seconds, seconds_per_round and more. Memory and operations are the compiler's;
bytes of a step and times are estimates, see `fesem_jax.forecast`.
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import flags as experiment_flags
from experiments import methods, run
from experiments.build import build_local, build_model, check_numbers, load_data
from experiments.errors import in_flags
from experiments.start import no_positional, start
from fesem_jax import chips, forecast, planning, sharding, topologies, waits
from fesem_jax.atomic import write_atomically
from fesem_jax.errors import UserError, argument, check_at_least
from fesem_jax.forecast import shown
from fesem_jax.planning import Outline, Plan, Split

# LEAF's own statistics: clients, examples, the most of one client, shape, classes.
_KNOWN = {
  'femnist': (3550, 805_263, 584, (28, 28), np.uint8, 62),
  'celeba': (9343, 200_288, 35, (84, 84, 3), np.uint8, 2),
}
# LEAF's share of a client's examples to measure on.
_TEST = 0.1


def outline(config: dict[str, Any], machine: dict[str, Any]) -> Outline:
  """How much data a configuration names.

  Raises:
    UserError: if neither the data nor their sizes are known.
  """
  clients, examples = flags.FLAGS.plan_clients, flags.FLAGS.plan_examples
  check_at_least(0, plan_clients=clients, plan_examples=examples)
  try:
    found = Outline.of(*load_data(config, machine['data_dir']))
  except UserError as e:
    if config['dataset'] not in _KNOWN:
      raise
    print(f"Note: the sizes are LEAF's of all natural clients; {in_flags(str(e))}")
    found = _known(*_KNOWN[config['dataset']], config)
  return scaled(found, clients or found.num_clients, examples)


def _known(
  clients: int,
  examples: int,
  most: int,
  shape: tuple[int, ...],
  dtype: Any,
  classes: int,
  config: dict[str, Any],
) -> Outline:
  clients = config['num_clients'] or clients
  share = clients / _KNOWN[config['dataset']][0]
  train, rest = (
    Split(max(1, round(part * share * examples)), max(1, round(part * most)))
    for part in (1 - _TEST, _TEST)
  )
  return Outline(clients, train, rest, shape, dtype, classes)


def scaled(found: Outline, clients: int, examples: int) -> Outline:
  """As many clients as wanted, of so many training examples each; 0 as they have."""

  def split(old: Split, examples: int) -> Split:
    mean = old.examples / found.num_clients
    most = max(1, round(old.most * (examples / mean if examples else 1)))
    return Split(max(1, round((examples or mean) * clients)), most)

  if clients == found.num_clients and not examples:
    return found
  ratio = found.test.examples / found.train.examples
  return found._replace(
    num_clients=clients,
    train=split(found.train, examples),
    test=split(found.test, round(examples * ratio)),
  )


def report(
  found: Plan, topology: str, mesh: jax.sharding.Mesh, memory: int | None
) -> dict[str, Any]:
  """A plan as JSON can hold it."""
  chip = topologies.chip_of(topology)
  needs = found.round.needs
  advice = None if memory is None else forecast.advice(found, memory, mesh.size)
  return {
    'topology': topology,
    'device': mesh.devices.flat[0].device_kind,
    'num_devices': mesh.size,
    'chip_bytes': memory,
    'fits': None if advice is None else not advice,
    'peak_bytes': found.peak,
    'model_bytes': found.model,
    'stack_bytes': found.stack,
    'state_bytes': found.state,
    'data_bytes': found.data,
    'clients_per_device': found.clients,
    'clients_per_chunk': found.together,
    'temporary_bytes_per_client': needs.temporaries // max(1, found.together),
    'collectives': needs.exchanged(),
    'to_host': needs.to_host,
    'compile_seconds': sum(p.seconds for p in found.programs),
    'operations_per_client_step': found.work.operations,
    'bytes_per_client_step': found.work.bytes,
    'steps_per_round': found.work.steps * mesh.size,
    'seconds_per_round': None
    if chip is None
    else forecast.seconds_per_round(found, chip),
    'advice': advice or [],
    'programs': {
      p.name: {
        'peak_bytes': p.needs.peak,
        'argument_bytes': p.needs.arguments,
        'temporary_bytes': p.needs.temporaries,
        'aliased_bytes': p.needs.aliased,
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
    cells = ''.join(f'{shown(size):>12}' for size in sizes)
    lines.append(f'{name:12}{cells}{program["compile_seconds"]:>12.1f} s')
  lines += [
    '',
    f'local models   {shown(made["stack_bytes"])} of a state of '
    f'{shown(made["state_bytes"])}; one model {shown(made["model_bytes"])}',
    f'data           {shown(made["data_bytes"])}',
    f'a client       {shown(made["temporary_bytes_per_client"])} while it trains',
    f'a local step   {made["operations_per_client_step"] / 1e6:,.1f} MFLOP, '
    f'{shown(made["bytes_per_client_step"])} of parameters read and written',
  ]
  exchanged = [
    f'{entry["count"]} {kind} of {shown(entry["bytes"])}'
    for kind, entry in made['collectives'].items()
  ]
  lines.append(f'exchanges      {", ".join(exchanged) or "none"} a round')
  if made['seconds_per_round'] is not None:
    lines.append(
      f'a round        {made["seconds_per_round"]:.3g} s or more for '
      f'{made["steps_per_round"]:,.0f} client steps (products at the stated speed of '
      f'bfloat16 in {chips.PASSES} passes, parameters at that of the memory)'
    )
  lines.append('')
  if made['chip_bytes'] is None:
    lines.append(
      f'Needs {shown(made["peak_bytes"])}; this device does not say its own.'
    )
  elif made['fits']:
    of, share = shown(made['chip_bytes']), made['peak_bytes'] / made['chip_bytes']
    lines.append(f'Fits: {shown(made["peak_bytes"])} of {of} ({100 * share:.0f} %).')
  else:
    lines.append(
      f"Does not fit: {shown(made['peak_bytes'])} are more than the chip's "
      f'{shown(made["chip_bytes"])}. What would make it fit:'
    )
    lines += [f'  {sentence}' for sentence in made['advice']]
  return '\n'.join(lines)


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  if topologies.chip_of(f.topology):
    jax.config.update('jax_platforms', 'cpu')  # Else JAX looks for such chips here.
    # Programs for chips that are not there could be written to it, but not read.
    jax.config.update('jax_enable_compilation_cache', False)
  sharding.setup_devices(0 if topologies.chip_of(f.topology) else f.num_devices)
  mesh = topologies.mesh_of(f.topology, f.num_devices)
  sharding.full_precision(list(mesh.devices.flat))
  config = run.chosen_configuration()
  machine = experiment_flags.machine()
  check_numbers(config | machine)
  if machine['clients_per_chunk'] == 'auto':
    raise UserError(
      f'{argument("clients_per_chunk", "auto")} times a run on the devices, which a '
      'plan does not have; give a number, or 0 for the default.'
    )
  wanted = outline(config, machine)
  train = planning.data_of(wanted, wanted.train, mesh)
  model = build_model(config, train)
  local = build_local(config, model, train, machine, mesh)
  algorithm = methods.configured(config, local)
  print(
    f'{f.algorithm} on {config["dataset"]}: {wanted.num_clients:,} clients, '
    f'{wanted.train.examples:,} training examples, for {mesh.size} device(s) of '
    f'{f.topology}'
  )
  with waits.shown(None):
    found = planning.plan(
      algorithm,
      wanted,
      config['clients_per_round'],
      config['finetune_epochs'],
    )
  made = report(found, f.topology, mesh, sharding.memory(mesh.devices.flat[0]))
  print(text(made))
  if f.json:
    content = json.dumps(made, indent=2) + '\n'
    write_atomically(pathlib.Path(f.json), content)
    print(f'In {f.json}')


def define_flags() -> None:
  """Defines the flags of this binary."""
  run.define_flags()
  flags.adopt_module_key_flags(run)
  kinds = ', '.join(f'{name} ({chip.example})' for name, chip in chips.CHIPS.items())
  flags.DEFINE_string(
    'topology',
    'local',
    f'Chips to compile for, KIND:SHAPE of the kinds {kinds}; local: the devices of '
    'this machine. --num_devices takes the first ones only.',
  )
  flags.DEFINE_string('json', '', 'File for the plan; default: none.')
  flags.DEFINE_integer('plan_clients', 0, 'Clients; 0: as many as the data set has.')
  flags.DEFINE_integer(
    'plan_examples', 0, 'Training examples of a client, on average; 0: as the data set.'
  )


if __name__ == '__main__':
  define_flags()
  start(main)
