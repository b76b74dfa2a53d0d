r"""SGD steps of one client per second, by work load and clients per chunk.

  python -m benchmarks.local_training --workloads=W1,W3,W4 --chunks=1,16,64

`useful` is the share of the computed steps that some client needed: a chunk
runs as long as its longest client. On a GPU, --conv_methods=patches,grouped
puts the ways to convolve side by side.
"""

from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS
from fesem_jax import data, models
from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import sharding, tree
from fesem_jax.core.batching import num_steps
from fesem_jax.utils.errors import UserError

_WORKLOADS = flags.DEFINE_list(
  'workloads', ['W1', 'W2', 'W3', 'W4', 'W5'], 'Of W1 .. W6.'
)
_CHUNKS = flags.DEFINE_list('chunks', ['0'], 'Clients per chunk; 0: the default.')
_CONV = flags.DEFINE_list(
  'conv_methods', [], f'Of {models.conv.METHODS}; default: one.'
)
_CLIENTS = flags.DEFINE_integer('num_clients', 0, "0: the work load's own number.")
_DEVICES = flags.DEFINE_integer('num_devices', 0, 'Devices; 0: all.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds.')

COLUMNS = (
  'workload',
  'clients',
  'chunk',
  'conv',
  'steps_per_second',
  'useful',
  'compile_seconds',
  'quiet',
)


def measure(name: str, chunk: int, conv: str, mesh: Any) -> dict[str, Any]:
  """One case: local training of every client from one model, and their mean."""
  workload = WORKLOADS[name]
  num_clients = _CLIENTS.value or workload.num_clients
  local = common.training(workload, mesh, chunk)
  if conv:
    shape, classes = workload.example_shape, workload.num_classes
    model = models.build(workload.network, shape, classes, (), conv)
    local = local._replace(model=model)
  train = common.federated(workload, num_clients, mesh)
  start = sharding.replicate(tree.expand(common.params_of(workload, local.model)), mesh)
  cohort, key = common.everyone(train), jax.random.key(0)

  @jax.jit
  def epoch(start, train, key):
    state, trained = global_model.train_and_average(
      local, global_model.GlobalState(start), train, cohort, key, Averaging('uniform')
    )
    return state.params, trained.mean_loss()

  compiled, compile_seconds = common.timed_compile(epoch, start, train, key)
  timed = common.repeat(lambda: compiled(start, train, key), _ROUNDS.value)
  steps = np.asarray(num_steps(local.schedule, train.sizes(), train.max_examples))
  return {
    'workload': name, 'clients': num_clients,
    'chunk': min(local.clients_per_chunk, num_clients),
    'conv': conv, 'steps_per_second': steps.sum() / timed['median_seconds'],
    'useful': common.useful_share(steps, mesh.size, local.clients_per_chunk),
    'compile_seconds': compile_seconds, 'client_steps': int(steps.sum()), **timed,
  }  # fmt: skip


def writers_share(mesh: Any) -> list[dict[str, Any]]:
  """Useful share on MNIST by writer, whose clients are as ragged as real ones."""
  try:
    train, _ = data.load('mnist_writers', partition='natural', min_examples=50)
  except UserError as e:
    print(f'No row for MNIST writers: {e}')
    return []
  rows = []
  for batch_size in (10, 50):
    sizes = np.asarray(train.sizes())
    steps = -(-sizes // batch_size)
    steps = np.concatenate([steps, np.zeros(-len(steps) % mesh.size, steps.dtype)])
    steps = steps[sharding.deal(steps)]
    for chunk in (1, 16, 64):
      rows.append(
        {
          'workload': f'MNIST writers, batch {batch_size}',
          'clients': len(sizes),
          'chunk': chunk,
          'useful': common.useful_share(steps, mesh.size, chunk),
        }
      )
  return rows


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  mesh = common.setup(_DEVICES.value)
  rows = []
  for name in _WORKLOADS.value:
    convs = _CONV.value if WORKLOADS[name].network != 'mlp' else []
    for conv in convs or ['']:
      for chunk in map(int, _CHUNKS.value):
        rows.append(measure(name, chunk, conv, mesh))
        print(common.table(rows[-1:], COLUMNS), flush=True)
  rows += writers_share(mesh)
  print(common.table(rows, COLUMNS))
  common.save('local_training', mesh, rows)


if __name__ == '__main__':
  app.run(main)
