r"""Effect of --precision on accuracy and clusters, and its savings on a TPU.

  python -m benchmarks.precision                      # emulated on this CPU
  python -m benchmarks.precision --topology=v5e:2x2   # compiled for a TPU, not run

Without --topology, each method runs on the CPU as it is, and as an accelerator would
compute it (`benchmarks.rounded`): start and rounds, but not measuring. Of each run: the
accuracy of the deployed models; how far the models of all clients are from those of the
highest precision, relative to their length (`apart`); ARI; and the clients in other
clusters than there, clusters named alike as far as they can be (`differ`). How `cpu`
differs from `highest` is rounding in float32 alone.

With it, a round of FedAvg is compiled for one chip at each precision: what its products
ask for in the program, the compiler's own estimate of their cycles and of those of all
operations, a loop's body counted once, and the seconds that compiling takes.
"""

import collections
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
import optax
from absl import app, flags
from scipy.optimize import linear_sum_assignment

from benchmarks import common, rounded
from benchmarks.workloads import WORKLOADS
from fesem_jax import algorithms, data, models
from fesem_jax.core import sharding
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import (
  LocalTraining,
  Machine,
  Precision,
  local_training,
)
from fesem_jax.run import planner, topologies
from fesem_jax.run.callbacks import Progress
from fesem_jax.run.data_shapes import DataSize, SplitSize
from fesem_jax.run.results.result import Result
from fesem_jax.run.simulation import simulate

# As the program is for this machine, and then for an accelerator.
CPU = 'cpu'

_METHODS: dict[str, dict[str, Any]] = {'fed_avg': {}, 'fesem': {'num_clusters': 4}}
# Clients side by side on the chip, and of the round.
_TOGETHER, _OF_ROUND = 8, 64


class Setting(NamedTuple):
  """Models that are trained.

  Attributes:
    dataset: its name; four groups of clients have images of their own rotation.
    clients: M.
    examples: training examples of a client; 0 deals all.
    model: by its name.
    rounds: of two local epochs, with batches of 10.
  """

  dataset: str
  clients: int
  examples: int
  model: str
  rounds: int


SETTINGS = {
  'digits': Setting('digits', 100, 0, 'mlp', 20),
  'digits_cnn': Setting('digits', 20, 40, 'small_cnn', 8),
}


def splits_of(setting: Setting, seed: int) -> tuple[FederatedData, FederatedData]:
  """Training and test data."""
  return data.load(
    setting.dataset,
    partition='rotated',
    partition_groups=4,
    num_clients=setting.clients,
    examples_per_client=setting.examples,
    seed=seed,
  )


def local_of(setting: Setting, train: FederatedData, precision: str) -> LocalTraining:
  """How the clients of a setting train, on one device."""
  return local_training(
    models.build(setting.model, train.example_shape, train.num_classes, [64]),
    optax.sgd(0.1),
    epochs=2,
    machine=Machine(
      mesh=sharding.client_mesh(1),
      precision='highest' if precision == CPU else precision,
    ),
  )


def in_other_clusters(a: np.ndarray, b: np.ndarray) -> int:
  """Clients that two assignments [M] put into different clusters.

  Clusters have no names of their own: those of `b` are named so that most agree.
  """
  count = int(max(a.max(), b.max())) + 1
  counts = np.zeros((count, count), int)
  np.add.at(counts, (a, b), 1)
  return int(len(a) - counts[linear_sum_assignment(-counts)].sum())


def distance(used: ClientModels, exact: ClientModels) -> float:
  """How far all clients' models are from others, relative to the length of these."""
  square = of_exact = 0.0
  for a, b in zip(*map(jax.tree.leaves, (used.shared, exact.shared)), strict=True):
    if exact.choice is not None:
      a, b = a[used.choice], b[exact.choice]
    square += float(np.square(a - b).sum())
    of_exact += float(np.square(b).sum())
  return (square / of_exact) ** 0.5


def measured(name: str, setting: Setting, num_seeds: int) -> list[dict[str, Any]]:
  """A row for each method and precision of a setting."""
  rows = []
  for method, options in _METHODS.items():
    exact: list[ClientModels] = []
    for precision in ('highest', 'high', 'default', CPU):
      local = local_of(setting, splits_of(setting, 0)[0], precision)
      algorithm = algorithms.build(method, local, **options)
      if precision != CPU:
        algorithm = rounded.algorithm(algorithm)
      results = list(runs(algorithm, setting, num_seeds))
      if precision == 'highest':
        exact = [result.models for result in results]
      row = {'setting': name, 'method': method, 'precision': precision}
      rows.append(row | figures(results, exact))
      print(rows[-1], flush=True)
  return rows


def runs(algorithm: Algorithm, setting: Setting, num_seeds: int) -> Iterator[Result]:
  """A run of each seed; they share their programs."""
  for seed in range(num_seeds):
    yield simulate(
      algorithm,
      *splits_of(setting, seed),
      rounds=setting.rounds,
      seed=seed,
      eval_every=0,
      finetune_epochs=0,
      callbacks=[Progress(False)],
    )


def figures(results: list[Result], exact: list[ClientModels]) -> dict[str, Any]:
  """Lists of figures, one of each seed, and the mean accuracy."""
  models = [result.models for result in results]
  accuracies = [r.summary['deployed']['micro_accuracy'] for r in results]
  row: dict[str, Any] = {
    'accuracy': float(np.mean(accuracies)),
    'accuracies': accuracies,
    'apart': list(map(distance, models, exact)),
  }
  if exact[0].choice is not None:
    row['ari'] = [r.summary['clusters']['ari'] for r in results]
    row['differ'] = [
      in_other_clusters(np.asarray(a.choice), np.asarray(b.choice))
      for a, b in zip(exact, models, strict=True)
    ]
  return row


def compiled(name: str, topology: str) -> list[dict[str, Any]]:
  """A row for each precision of FedAvg's round on a work load, for one chip."""
  workload, mesh = WORKLOADS[name], topologies.mesh_of(topology, 1)
  model = models.build(
    workload.network, workload.example_shape, workload.num_classes, workload.hidden
  )
  rows = []
  for precision in get_args(Precision):
    local = local_training(
      model,
      optax.sgd(workload.learning_rate),
      batch_size=workload.batch_size,
      machine=Machine(clients_per_chunk=_TOGETHER, mesh=mesh, precision=precision),
    )
    of_each = workload.examples
    size = DataSize(
      _OF_ROUND,
      SplitSize(of_each * _OF_ROUND, of_each),
      SplitSize(_OF_ROUND, 1),
      workload.example_shape,
      np.dtype('uint8'),
      workload.num_classes,
    )
    plan = planner.plan(algorithms.build('fed_avg', local), size, parts=('round',))
    text = plan.round.text
    seconds = plan.round.seconds
    row = {'workload': name, 'precision': precision, 'compile_seconds': seconds}
    rows.append(row | cycles(text))
    print(rows[-1], flush=True)
  return rows


_PRODUCT = re.compile(r' (?:convolution|dot)\(')
_PRECISION = re.compile(r'operand_precision=\{(\w+)')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLS = re.compile(r'calls=%([\w.\-]+)')


def cycles(text: str) -> dict[str, Any]:
  """The products of a TPU's program by precision, and the compiler's cycles of them.

  Args:
    text: of a compiled program.

  Returns:
    products: precision -> how many. cycles_of_products: of all operations that hold
    one. cycles: of all operations.
  """
  products: collections.Counter[str] = collections.Counter()
  with_product, computation = set(), ''
  for line in text.splitlines():
    if line.startswith(('%', 'ENTRY')):
      computation = line.removeprefix('ENTRY ').split()[0].lstrip('%')
    elif _PRODUCT.search(line):
      match = _PRECISION.search(line)
      products[match[1] if match else 'default'] += 1
      with_product.add(computation)
  total = of_products = 0
  for line in text.splitlines():
    if (estimate := _CYCLES.search(line)) is None:
      continue
    total += int(estimate[1])
    called = _CALLS.search(line)
    if _PRODUCT.search(line) or (called and called[1] in with_product):
      of_products += int(estimate[1])
  return {
    'products': dict(products), 'cycles_of_products': of_products, 'cycles': total,
  }  # fmt: skip


def define_flags() -> None:
  """Defines the flags of this benchmark."""
  flags.DEFINE_list('settings', list(SETTINGS), f'Of {", ".join(SETTINGS)}.')
  flags.DEFINE_integer('num_seeds', 3, 'Runs of each method and precision.')
  flags.DEFINE_string('topology', '', 'Chips to compile for, e.g. v5e:2x2; or none.')
  flags.DEFINE_list('workloads', ['W1', 'W3'], 'What is compiled for them.')


def main(argv: list[str]) -> None:
  """Measures, prints and saves."""
  del argv
  f = flags.FLAGS
  mesh = common.setup(1)
  if f.topology:
    rows = [row for name in f.workloads for row in compiled(name, f.topology)]
    columns = [
      'workload', 'precision', 'compile_seconds', 'products', 'cycles_of_products',
      'cycles',
    ]  # fmt: skip
  else:
    rows = [
      row for name in f.settings for row in measured(name, SETTINGS[name], f.num_seeds)
    ]
    columns = [
      'setting', 'method', 'precision', 'accuracy', 'apart', 'ari', 'differ',
    ]  # fmt: skip
  print(common.table(rows, columns))
  common.save('precision', mesh, rows)


if __name__ == '__main__':
  define_flags()
  app.run(main)
