r"""Compiles rounds for TPUs that are not there, and counts what their programs do.

  python -m benchmarks.tpu_programs
  python -m benchmarks.tpu_programs --programs=W3,hypo_cluster --chips=v5e

Each row is a compiled round on four chips with the clients of a workload: FedAvg of W1,
W2, W3, W7 and W8, and FeSEM(4) and IFCA(4) (`hypo_cluster`) of W1. Columns:

  to_host     instructions that wait for the host
  state_kept  share of the state that a round's result takes over in place
  exchanged   models that each chip adds up with the others, by the bytes
  others      bytes of all other exchanges
  gathers     gathers of clients' kernels
  products    products on the matrix unit, and those at another precision than asked for
  padding     bytes of arguments beyond their numbers
  models      temporaries of a client that trains, in models
  seconds     at least: operations at the chip's peak, or bytes at its bandwidth

They are added to `results/tpu_programs.json`. The compiler takes minutes for each row.
"""

import json
from typing import Any, cast

import jax
import numpy as np
from absl import app, flags

from benchmarks import common, floor
from benchmarks.workloads import WORKLOADS, Workload
from fesem_jax import algorithms
from fesem_jax.core.local_training import Precision
from fesem_jax.run import planner
from fesem_jax.run.data_shapes import DataSize, SplitSize
from fesem_jax.run.planner import Plan
from fesem_jax.run.program_memory import collectives_of
from fesem_jax.utils import provenance
from fesem_jax.utils.atomic_files import write_atomically

# Method, its options and the workload of each row.
PROGRAMS: dict[str, tuple[str, dict[str, Any], str]] = {
  **{name: ('fed_avg', {}, name) for name in ('W1', 'W2', 'W3', 'W7', 'W8')},
  'fesem': ('fesem', {'num_clusters': 4}, 'W1'),
  'hypo_cluster': ('hypo_cluster', {'num_clusters': 4}, 'W1'),
}

_PROGRAMS = flags.DEFINE_list('programs', list(PROGRAMS), 'Rows to compile.')
_CHIPS = flags.DEFINE_list('chips', ['v5e', 'v6e'], 'Kinds of chips, four of each.')
_PRECISION = flags.DEFINE_string('precision', 'default', 'Precision of products.')

# Operations a second in bfloat16 and bytes a second of a chip's memory:
# https://docs.cloud.google.com/tpu/docs/v5e and v6e.
_PEAKS = {'v5e': (197e12, 819e9), 'v6e': (918e12, 1638e9)}
# Products of bfloat16 that one product takes.
_PASSES = {'default': 1, 'high': 3, 'highest': 6}


def planned(workload: Workload, name: str, options: Any, chip: str) -> Plan:
  """The compiled round of a method on four chips."""
  mesh = planner.mesh_of(f'{chip}:2x2')
  precision = cast(Precision, _PRECISION.value)
  local = common.training(workload, mesh)._replace(precision=precision)
  clients = workload.num_clients
  tokens = workload.network == 'lstm'
  size = DataSize(
    clients,
    SplitSize(clients * workload.examples, workload.examples),
    SplitSize(clients, 1),
    workload.example_shape,
    np.dtype(np.int32 if tokens else np.uint8),
    workload.num_classes,
  )
  algorithm = algorithms.build(name, local, **options)
  return planner.plan(algorithm, size, parts=('round',))


def least_seconds(workload: Workload, plan: Plan, chip: str, precision: str) -> float:
  """Least time of a round on a chip: of its products, or of reading its models."""
  steps = plan.clients_per_device * workload.steps(1)
  operations, bandwidth = _PEAKS[chip]
  return max(
    _PASSES[precision] * floor.operations(workload) * steps / operations,
    floor.bytes_moved(workload) * steps / bandwidth,
  )


def row_of(program: str, chip: str) -> dict[str, Any]:
  """A row of the table; see above."""
  name, options, load = PROGRAMS[program]
  workload = WORKLOADS[load]
  plan = planned(workload, name, options, chip)
  memory, text = plan.round.memory, plan.round.text
  exchanges = collectives_of(text)
  added = sum(c.bytes for c in exchanges if c.kind == 'all-reduce')
  kernels = {shape for shape in workload.shapes().values() if len(shape) > 1}
  products = common.products_by_precision(text)
  at_precision = products.pop(_PRECISION.value, 0)
  numbers = plan.state_bytes + plan.data_bytes - plan.test_bytes
  per_client = memory.temporaries / plan.clients_per_chunk
  return {
    'program': program,
    'chip': chip,
    'to_host': len(common.calls_to_host(text)),
    'state_kept': min(1.0, memory.aliased / plan.state_bytes),  # Tiles are padded.
    'exchanged': added / plan.model_bytes,
    'others': sum(c.bytes for c in exchanges if c.kind != 'all-reduce'),
    'gathers': len(
      common.gathers_of_models(text, kernels, options.get('num_clusters', 1))
    ),
    'products': f'{at_precision}, {sum(products.values())} others',
    'side_by_side': plan.clients_per_chunk,
    'padding': max(0, memory.arguments - numbers),
    'temporaries': round(per_client),
    'models': per_client / plan.model_bytes,
    'seconds': least_seconds(workload, plan, chip, _PRECISION.value),
  }


def main(argv: list[str]) -> None:
  """Prints a table, row by row."""
  del argv
  jax.config.update('jax_platforms', 'cpu')
  # Programs for other hardware could be written to the cache, but not read.
  jax.config.update('jax_enable_compilation_cache', False)
  file = common.RESULTS / 'tpu_programs.json'
  rows = json.loads(file.read_text())['rows'] if file.exists() else []
  for chip in _CHIPS.value:
    for program in _PROGRAMS.value:
      new = row_of(program, chip) | {'precision': _PRECISION.value}
      keys = ('program', 'chip', 'precision')
      rows = [r for r in rows if any(r[k] != new[k] for k in keys)] + [new]
      print(json.dumps(new), flush=True)
      result = {'versions': provenance.versions(), 'rows': rows}
      write_atomically(file, json.dumps(result, indent=1) + '\n')
  print(common.table(rows, list(rows[0])))


if __name__ == '__main__':
  app.run(main)
