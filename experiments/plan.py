r"""Says what a run needs of each chip before it is paid for.

  fesem-plan --flagfile=femnist --topology=v5e:2x4 --json=plan.json

The start, a round and the evaluation of the run that the other flags describe are
compiled for the chips of --topology, which need not be there (for TPUs, install the
extra `tpu`). Printed are, for each device: memory by program against the chip's, the
local models and the data in it; exchanges between chips; the time to compile; and a
bound from below on the seconds of a round. Where the run does not fit, flags that make
it fit are named, with numbers.

The data are needed only for their sizes: they are read where --data_dir has them; the
sizes of FEMNIST and CelebA (LEAF) are known without. --plan_clients and --plan_examples
ask for more, or fewer, of the same.

Several topologies, or several numbers of clients, give a table, and with --json a
picture of memory and time beside it:

  fesem-plan --flagfile=femnist --plan_programs=round \
      --topology=v5e:2x2,v5e:4x4,v5e:8x8 --plan_clients=1000,4000 --json=plans.json

--json gets fits, peak_bytes, chip_bytes, temporary_bytes_per_client, collectives,
compile_seconds, seconds_per_round and more. Memory and operations are the compiler's;
bytes of a step and times are estimates, see `fesem_jax.planning.fit_advice`.
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh

from fesem_jax.cohorts import placement
from fesem_jax.core import chips, sharding
from fesem_jax.planning import planner, topologies
from fesem_jax.planning.data_shapes import Outline, Split, data_of
from fesem_jax.utils import progress_lines
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError, argument, check_at_least, check_choice

from . import flags as experiment_flags
from . import methods, run, unused
from .build import build_local, build_model, check_numbers, load_data
from .errors import in_flags
from .plan_report import report, table, text
from .start import no_positional, start

# LEAF's own statistics: clients, examples, the most of one client, shape, classes.
_KNOWN = {
  'femnist': (3550, 805_263, 584, (28, 28), np.uint8, 62),
  'celeba': (9343, 200_288, 35, (84, 84, 3), np.uint8, 2),
}
# LEAF's share of a client's examples to measure on.
_TEST = 0.1


def outline(
  config: dict[str, Any], machine: dict[str, Any], clients: int = 0
) -> Outline:
  """How much data a configuration names.

  Args:
    config: of the run.
    machine: flags of the machine.
    clients: so many of the same kind; 0 is as many as there are.

  Raises:
    UserError: if neither the data nor their sizes are known.
  """
  examples = flags.FLAGS.plan_examples
  check_at_least(0, plan_examples=examples)
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
    test=split(found.test, max(1, round(examples * ratio)) if examples else 0),
  )


def one_plan(
  config: dict[str, Any],
  machine: dict[str, Any],
  topology: str,
  mesh: Mesh,
  wanted: Outline,
) -> dict[str, Any]:
  """The plan of a run for the devices of one topology; see `report`."""
  f = flags.FLAGS
  sharding.full_precision(list(mesh.devices.flat))
  train = data_of(wanted, wanted.train, mesh)
  model = build_model(config, train)
  local = build_local(config, model, train, machine, mesh)
  unused.check_shared_start(config, machine, local)
  algorithm = methods.configured(config, local)
  print(
    f'{f.algorithm} on {config["dataset"]}: {wanted.num_clients:,} clients, '
    f'{wanted.train.examples:,} training examples, for {mesh.size} device(s) of '
    f'{topology}',
    flush=True,
  )
  placed = placement.chosen(
    machine['data_placement'],
    wanted.bytes,
    mesh,
    everyone=not 0 < config['clients_per_round'] < wanted.num_clients,
  )
  with progress_lines.shown(None):
    found = planner.plan(
      algorithm,
      wanted,
      config['clients_per_round'],
      config['finetune_epochs'],
      f.plan_programs,
      placed,
    )
  memory = sharding.memory(mesh.devices.flat[0], mesh.size)
  return report(found, wanted.num_clients, topology, mesh, memory)


def numbers_of_clients() -> list[int]:
  """The values of --plan_clients.

  Raises:
    UserError: if one is not a whole number of at least 0.
  """
  found = flags.FLAGS.plan_clients
  try:
    counts = [int(count) for count in found]
  except ValueError as e:
    raise UserError(
      f'{argument("plan_clients", ",".join(found))} must be whole numbers.'
    ) from e
  for count in counts:
    check_at_least(0, plan_clients=count)
  return counts or [0]


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  elsewhere = any(map(topologies.chip_of, f.topology))
  if elsewhere and set(f.topology) & set(topologies.HERE):
    raise UserError(
      f'{argument("topology", ",".join(f.topology))} mixes devices of this machine '
      'with others; plan for each kind by itself.'
    )
  if elsewhere:
    jax.config.update('jax_platforms', 'cpu')  # Else JAX looks for such chips here.
    # Programs for chips that are not there could be written to it, but not read.
    jax.config.update('jax_enable_compilation_cache', False)
  sharding.setup_devices(0 if elsewhere else f.num_devices)
  config = run.chosen_configuration()
  machine = experiment_flags.machine()
  check_numbers(config | machine)
  if machine['clients_per_chunk'] == 'auto':
    raise UserError(
      f'{argument("clients_per_chunk", "auto")} times a run on the devices, which a '
      'plan does not have; give a number, or 0 for the default.'
    )
  for name in f.plan_programs:
    check_choice('plan_programs', name, planner.PARTS)
  if 'round' not in f.plan_programs:
    raise UserError(f'{argument("plan_programs")} must name round.')
  meshes = {name: topologies.mesh_of(name, f.num_devices) for name in f.topology}
  plans = []
  for count in numbers_of_clients():
    wanted = outline(config, machine, count)
    for topology, mesh in meshes.items():
      plans.append(one_plan(config, machine, topology, mesh, wanted))
      print(text(plans[-1]), end='\n\n', flush=True)
  if len(plans) > 1:
    print(table(plans))
  if f.json:
    content = plans[0] if len(plans) == 1 else {'plans': plans}
    write_atomically(pathlib.Path(f.json), json.dumps(content, indent=2) + '\n')
    print(f'In {f.json}')
  if f.json and len(plans) > 1:
    from fesem_jax.plots import plans as picture  # Matplotlib takes half a second.
    from fesem_jax.plots.saving import save

    for file in save(picture.by_chips(plans), pathlib.Path(f.json).with_suffix('')):
      print(f'In {file}')


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
    'plan_examples', 0, 'Training examples of a client, on average; 0: as the data set.'
  )


if __name__ == '__main__':
  define_flags()
  start(main)
