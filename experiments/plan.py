"""Plans a run: memory of each chip and exchanges between chips, ahead of time.

fesem-plan --flagfile=femnist --topology=v5e:2x4 --json=plan.json
"""

import dataclasses
import json
import pathlib
from typing import Annotated, Any

import jax
from absl import flags
from jax.sharding import Mesh

from fesem_jax.core import placement, sharding
from fesem_jax.core.selection import cohort_size
from fesem_jax.data import with_true_groups
from fesem_jax.data.expressions import split_call
from fesem_jax.run import planner
from fesem_jax.run.program_memory import collectives_by_kind, in_bytes
from fesem_jax.run.runner import Splits
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError

from . import flags as experiment_flags
from . import methods, run
from .build import build_local, build_model, load_phases
from .options import Kinds
from .start import no_positional, start


@dataclasses.dataclass(frozen=True)
class Planned:
  """A plan.

  Attributes:
    topology: local (devices here) or chips, e.g. v5e:2x4. Chips:
    json: File for the plan; default: none.
  """

  topology: Annotated[str, Kinds(tuple(sharding.CHIPS))] = 'local'
  json: str = ''


def splits(config: dict[str, Any]) -> Splits:
  try:
    _, train, test = load_phases(config, flags.FLAGS.data_dir)[0]
  except (OSError, UserError):
    name, _ = split_call(config['dataset'])
    if name not in planner.LEAF:
      raise
    return planner.leaf(name, config['num_clients'])
  return with_true_groups(train) if config['algorithm'] == 'oracle' else train, test


def planned(config: dict[str, Any], data: Splits, mesh: Mesh) -> planner.Plan:
  machine = experiment_flags.machine()
  sharding.full_precision(list(mesh.devices.flat))
  train = data[0]
  local = build_local(config, build_model(config, train), train, machine, mesh)
  clients = cohort_size(config['clients_per_round'], train.num_clients)
  placed = placement.chosen(
    machine['data_placement'],
    placement.bytes_of(*data),
    mesh,
    everyone=not 0 < clients < train.num_clients,
  )
  algorithm, epochs = methods.configured(config, local), config['finetune_epochs']
  return planner.plan(algorithm, *data, clients, epochs, data_placement=placed)


def table(plan: planner.Plan) -> str:
  """A row for each program."""
  import pandas  # Slow to import.

  heads, rows = ['program', 'peak', 'arguments', 'temporary', 'exchanged'], []
  for name, memory, _, text in plan.programs:
    sizes = memory.peak, memory.arguments, memory.temporaries
    kinds = collectives_by_kind(text).items()
    sent = ', '.join(f'{x["count"]} {k} {in_bytes(x["bytes"])}' for k, x in kinds)
    rows.append([name, *map(in_bytes, sizes), sent])
  return pandas.DataFrame(rows, columns=heads).to_string(index=False)


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  if f.topology != 'local':
    jax.config.update('jax_platforms', 'cpu')  # Else JAX looks for such chips here.
    # Programs for other hardware could be written to it, but not read.
    jax.config.update('jax_enable_compilation_cache', False)
  devices = f.num_devices if f.topology == 'local' else 0
  sharding.setup_devices(devices, identical=f.identical)
  config, mesh = run.chosen_configuration(), planner.mesh_of(f.topology, f.num_devices)
  plan = planned(config, splits(config), mesh)
  memory = sharding.memory(mesh.devices.flat[0], mesh.size)
  small = memory is None or plan.peak_bytes <= memory
  temporaries = plan.round.memory.temporaries // max(1, plan.clients_per_chunk)
  content = plan._asdict() | {
    'topology': f.topology,
    'num_devices': mesh.size,
    'programs': {p.name: p.memory._asdict() for p in plan.programs},
    'chip_bytes': memory,
    'fits': small and all(p.text for p in plan.programs),
    'peak_bytes': plan.peak_bytes,
    'temporary_bytes_per_client': temporaries,
    'collectives': collectives_by_kind(plan.round.text),
    'compile_seconds': sum(p.seconds for p in plan.programs),
  }
  print(
    f'{table(plan)}\n{f.topology}: {in_bytes(plan.peak_bytes)}, fits: {content["fits"]}'
  )
  if f.json:
    write_atomically(pathlib.Path(f.json), json.dumps(content, indent=2) + '\n')


def define_flags() -> None:
  run.define_flags()
  experiment_flags.define(Planned)


if __name__ == '__main__':
  define_flags()
  start(main)
