r"""Plans a run: memory of each chip and exchanges between chips, ahead of time.

  fesem-plan --flagfile=femnist --topology=v5e:2x4 --json=plan.json
  fesem-plan --flagfile=femnist --plan_programs=round \
      --topology=v5e:2x2,v5e:4x4,v5e:8x8 --plan_clients=1000,4000 --json=plans.json

The run's programs are compiled for the chips of --topology, without the hardware (for
TPUs, install the extra `tpu`). Only the sizes of the data are needed; those of FEMNIST
and CelebA are known.
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh

from fesem_jax.core import chips, sharding
from fesem_jax.data import placement, with_true_groups
from fesem_jax.run import planner, topologies
from fesem_jax.run.data_shapes import DataSize, SplitSize, data_of
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.ranges import check_choice

from . import flags as experiment_flags
from . import methods, run
from .build import build_local, build_model, load_phases
from .plan_report import report, table, text
from .start import no_positional, start

# LEAF's own statistics, of which a tenth of each client's examples is to measure on.
_KNOWN = {
  'femnist': DataSize(
    3550, SplitSize(724_737, 526), SplitSize(80_526, 58), (28, 28), np.uint8, 62
  ),
  'celeba': DataSize(
    9343, SplitSize(180_259, 32), SplitSize(20_029, 4), (84, 84, 3), np.uint8, 2
  ),
}


def data_size(
  config: dict[str, Any], machine: dict[str, Any], clients: int = 0
) -> DataSize:
  """Size of the data that a configuration names, of `clients` clients if positive."""
  examples = flags.FLAGS.plan_examples
  try:
    _, train, test = load_phases(config, machine['data_dir'])[0]
    if config['algorithm'] == 'oracle':
      train = with_true_groups(train)
    size = DataSize.of(train, test)
  except UserError as e:
    if config['dataset'] not in _KNOWN:
      raise
    print(f"the sizes are LEAF's of all natural clients; {e!s}")
    size = _KNOWN[config['dataset']]
    clients = clients or config['num_clients']
  if not clients and not examples:
    return size
  return size.scaled(clients or size.num_clients, examples)


def one_plan(
  config: dict[str, Any],
  machine: dict[str, Any],
  topology: str,
  mesh: Mesh,
  size: DataSize,
) -> dict[str, Any]:
  """The plan of a run for the devices of one topology; see `report`."""
  f = flags.FLAGS
  sharding.full_precision(list(mesh.devices.flat))
  train = data_of(size, size.train, mesh)
  local = build_local(config, build_model(config, train), train, machine, mesh)
  print(
    f'{f.algorithm} on {config["dataset"]}: {size.num_clients:,} clients, '
    f'{size.train.examples:,} training examples, for {mesh.size} device(s) of '
    f'{topology}',
    flush=True,
  )
  clients = config['clients_per_round']
  everyone = not 0 < clients < size.num_clients
  placed = placement.chosen(
    machine['data_placement'], size.bytes, mesh, everyone=everyone
  )
  with progress_lines.shown():
    plan = planner.plan(
      methods.configured(config, local),
      size,
      clients,
      config['finetune_epochs'],
      f.plan_programs,
      placed,
    )
  memory = sharding.memory(mesh.devices.flat[0], mesh.size)
  return report(plan, size.num_clients, topology, mesh, memory)


def numbers_of_clients() -> list[int]:
  """The values of --plan_clients; 0 is as many as the data have."""
  given = flags.FLAGS.plan_clients
  return [int(count) for count in given] or [0]


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  elsewhere = set(f.topology) - set(topologies.HERE)
  if elsewhere:
    jax.config.update('jax_platforms', 'cpu')  # Else JAX looks for such chips here.
    # Programs for other hardware could be written to it, but not read.
    jax.config.update('jax_enable_compilation_cache', False)
  sharding.setup_devices(0 if elsewhere else f.num_devices)
  config = run.chosen_configuration()
  machine = experiment_flags.machine()
  for name in f.plan_programs:
    check_choice('plan_programs', name, planner.PARTS)
  meshes = {name: topologies.mesh_of(name, f.num_devices) for name in f.topology}
  plans = []
  for count in numbers_of_clients():
    size = data_size(config, machine, count)
    for topology, mesh in meshes.items():
      plans.append(one_plan(config, machine, topology, mesh, size))
      print(text(plans[-1]), end='\n\n', flush=True)
  if len(plans) > 1:
    print(table(plans))
  if f.json:
    content = plans[0] if len(plans) == 1 else {'plans': plans}
    write_atomically(pathlib.Path(f.json), json.dumps(content, indent=2) + '\n')
    print(f'In {f.json}')


def define_flags() -> None:
  """Defines the flags of this binary."""
  run.define_flags()
  flags.adopt_module_key_flags(run)
  kinds = ', '.join(f'{name} ({chip.example})' for name, chip in chips.CHIPS.items())
  flags.DEFINE_list(
    'topology',
    ['local'],
    f'Chips to compile for, KIND:SHAPE of the kinds {kinds}; cpu, gpu or local: the '
    'devices of this machine. --num_devices takes the first ones only. Several, with '
    'commas, give a table.',
  )
  flags.DEFINE_list(
    'plan_programs',
    list(planner.PARTS),
    'Which programs of the run to compile; round must be among them.',
  )
  flags.DEFINE_string('json', '', 'File for the plan; default: none.')
  flags.DEFINE_list(
    'plan_clients',
    [],
    'Clients; default: as many as the data have. Several, with commas, give a table.',
  )
  flags.DEFINE_integer(
    'plan_examples',
    0,
    'Training examples of a client, on average; 0: as the data set.',
    lower_bound=0,
  )


if __name__ == '__main__':
  define_flags()
  start(main)
