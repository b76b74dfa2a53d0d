r"""E-step, M-step and k-means beside the speed of a plain copy.

  python -m benchmarks.em --num_clients=1000 --num_clusters=4

The model is W3's. Bytes moved: the E-step and the M-step read the stack once and
the centers once; a copy reads and writes what it copies. `share` is a step's
bytes per second over the copy's, measured in the same run.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import common
from benchmarks.workloads import WORKLOADS
from fesem_jax.algorithms.common import global_model
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import sharding, tree
from fesem_jax.server import em, kmeans

_CLIENTS = flags.DEFINE_integer('num_clients', 1000, 'M.')
_CLUSTERS = flags.DEFINE_list('num_clusters', ['1', '4', '10'], 'Values of K.')
_RESTARTS = flags.DEFINE_integer('restarts', 20, 'Of the k-means.')
_ROUNDS = flags.DEFINE_integer('rounds', 7, 'Timed rounds.')

COLUMNS = ('case', 'clusters', 'median_seconds', 'gigabytes_per_second', 'share')


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  mesh = common.setup()
  workload, num_clients = WORKLOADS['W3'], _CLIENTS.value
  num_clients = -(-num_clients // mesh.size) * mesh.size
  local = common.training(workload, mesh)
  model = common.params_of(workload, local.model)
  size = sum(x.size for x in jax.tree.leaves(model))

  @jax.jit
  def make(key: jax.Array) -> Any:
    keys = iter(jax.random.split(key, 8))
    group = jnp.arange(num_clients) % 4  # Four clusters, as far apart as wide.

    def clients(x: jax.Array) -> jax.Array:
      center = jax.random.normal(next(keys), (4, *x.shape))
      noise = jax.random.normal(next(keys), (num_clients, *x.shape))
      return center[group] + noise

    return sharding.split_clients(jax.tree.map(clients, model), mesh)

  stack = make(jax.random.key(0))

  def bytes_of(rows):
    return 4.0 * rows * size

  rows: list[dict[str, Any]] = []

  def add(case: str, clusters: int, moved: float | None, fn: Any, *args: Any) -> None:
    compiled = jax.jit(fn).lower(*args).compile()
    timed = common.repeat(lambda: compiled(*args), _ROUNDS.value)
    row: dict[str, Any] = {'case': case, 'clusters': clusters, **timed}
    if moved is not None:
      rate = moved / timed['median_seconds'] / 1e9
      share = rate / rows[0]['gigabytes_per_second']
      row |= {'gigabytes': moved / 1e9, 'gigabytes_per_second': rate, 'share': share}
    rows.append(row)

  # Negating in place costs what a copy does, without new memory for the result.
  negate = jax.jit(lambda stack: jax.tree.map(jnp.negative, stack), donate_argnums=0)

  def negate_in_place() -> Any:
    nonlocal stack
    stack = negate(stack)
    return stack

  timed = common.repeat(negate_in_place, _ROUNDS.value, warmups=2)
  moved = 2 * bytes_of(num_clients)
  rate = moved / timed['median_seconds'] / 1e9
  rows.append(
    {
      'case': 'copy',
      'clusters': 0,
      **timed,
      'gigabytes': moved / 1e9,
      'gigabytes_per_second': rate,
      'share': 1.0,
    }
  )
  for k in map(int, _CLUSTERS.value):
    centers = sharding.replicate(jax.tree.map(lambda x: x[:k], stack), mesh)  # noqa: B023
    moved = bytes_of(num_clients + k)

    def e_step(stack, centers):
      return em.e_step(stack, centers, mesh)

    add('E-step', k, moved, e_step, stack, centers)
    assignment, _ = jax.jit(e_step)(stack, centers)
    weights = jnp.ones(num_clients)
    m_step = functools.partial(em.m_step, mesh=mesh)
    add('M-step', k, moved, m_step, stack, assignment, weights, centers)

  exists, ids = jnp.ones(num_clients, bool), jnp.arange(num_clients)

  def cluster(stack: Any) -> Any:
    return kmeans.kmeans(
      jax.random.key(1), stack, exists, 4, ids, restarts=_RESTARTS.value, mesh=mesh
    )

  add(f'k-means, {_RESTARTS.value} restarts', 4, None, cluster, stack)
  train = common.federated(workload, num_clients, mesh)
  cohort = common.everyone(train)
  start = sharding.replicate(tree.expand(model), mesh)

  def local_round(start: Any, train: Any) -> Any:
    state, _ = global_model.train_and_average(
      local,
      global_model.GlobalState(start),
      train,
      cohort,
      jax.random.key(0),
      Averaging('uniform'),
    )
    return state.params

  add('local round, 1 epoch', 1, None, local_round, start, train)
  print(common.table(rows, COLUMNS))
  common.save('em', mesh, rows)


if __name__ == '__main__':
  app.run(main)
