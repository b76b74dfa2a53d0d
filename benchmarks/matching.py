r"""Matching the units of LEAF's CNN to those of centers, by part and by solver.

  python -m benchmarks.matching --num_clients=2 --num_clusters=4

The model is W1's (6.6 M parameters, a dense layer of 2,048 units). Parts are timed for
one client and one center, an E-step for one client and all centers; `all_seconds` is
what 1,000 clients and K centers would take in processor time. Clients are 'near' their
center (units in their places, as after training from it), 'permuted' copies of it with
the same noise, or 'unlike' it (own starts). SciPy's solver is called directly,
as inside a program it deadlocks on two devices.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from scipy import optimize

from benchmarks import common
from benchmarks.workloads import WORKLOADS
from fesem_jax import models
from fesem_jax.core import tree
from fesem_jax.server import hidden_units, linear_assignment, matching

_CLIENTS = flags.DEFINE_integer('num_clients', 2, 'Clients of the E-steps.')
_CLUSTERS = flags.DEFINE_integer('num_clusters', 4, 'K.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Timed rounds.')

COLUMNS = ('case', 'part', 'processor_seconds', 'all_seconds', 'median_seconds')
_NOISE = 0.1  # Times the standard deviation of the start.
_ALL = 1000


def shaken(key: jax.Array, params: Any) -> Any:
  """Parameters with noise of a tenth of each layer's standard deviation."""
  keys = iter(jax.random.split(key, len(jax.tree.leaves(params))))

  def noisy(x: jax.Array) -> jax.Array:
    return x + _NOISE * x.std() * jax.random.normal(next(keys), x.shape)

  return jax.tree.map(noisy, params)


def _cost_matrices(layers: Any, one: Any, center: Any, before: Any) -> list[jax.Array]:
  """Orders of each hidden layer, after the orders `before` of the layers below it."""
  out = []
  for layer, order in zip(layers[:-1], before, strict=True):
    theirs = hidden_units.incoming(layer, center, None)
    out.append(hidden_units.costs(theirs, hidden_units.incoming(layer, one, order)))
  return out


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  del argv
  mesh = common.setup(1)
  workload = WORKLOADS['W1']
  model = models.build(
    workload.network, workload.example_shape, workload.num_classes, workload.hidden
  )
  layers = hidden_units.layers_of(model)
  start = model.init(jax.random.key(0))
  num_clusters, num_clients = _CLUSTERS.value, _CLIENTS.value
  center_keys = jax.random.split(jax.random.key(1), num_clusters)
  centers = jax.jit(jax.vmap(shaken, (0, None)))(center_keys, start)
  center = tree.unstack(centers, 0)
  rng = np.random.default_rng(0)
  orders = [
    jnp.asarray(rng.permutation(start[layer.name]['bias'].size))
    for layer in layers[:-1]
  ]
  rows: list[dict[str, Any]] = []

  def add(case: str, part: str, times: float, fn: Any, *args: Any) -> None:
    calls = 0

    def counted() -> Any:
      nonlocal calls
      calls += 1
      return fn(*args)

    jax.block_until_ready(fn(*args))
    each = common.calls_to_time(counted)
    calls, began = 0, time.process_time()
    timed = common.repeat(counted, _ROUNDS.value, warmups=0, calls=each)
    # Other processes slow the clock's time down, hardly the processor's.
    seconds = (time.process_time() - began) / calls
    row = {'case': case, 'part': part, 'processor_seconds': seconds, **timed}
    rows.append({**row, 'all_seconds': times * seconds})
    print(common.table(rows[-1:], COLUMNS), flush=True)

  separations = jax.jit(functools.partial(matching.separations, layers))
  add('centers', 'separations', 1, separations, centers)
  apart = separations(centers)
  touching = jax.tree.map(jnp.zeros_like, apart)  # Never close enough.

  costs = jax.jit(functools.partial(_cost_matrices, layers))

  @jax.jit
  def distance(one: Any, center: Any) -> jax.Array:
    return tree.row_distances(tree.expand(one), tree.expand(center))

  nearest = jax.jit(functools.partial(matching.nearest, layers))
  in_order = jax.jit(functools.partial(hidden_units.in_order, layers))
  match = jax.jit(functools.partial(matching.match, layers))
  compiled = {
    'ours': jax.jit(linear_assignment.solve),
    'Optax': jax.jit(lambda cost: optax.assignment.hungarian_algorithm(cost)[0]),
  }
  near = shaken(jax.random.key(2), center)
  clients = {
    'near': near,
    'permuted': in_order(near, orders),
    'unlike': model.init(jax.random.key(3)),
  }
  pairs = _ALL * num_clusters
  for case, one in clients.items():
    permutation, _ = match(one, center, None)
    before = [None, *permutation[:-1]]
    add(case, 'distance', pairs, distance, one, center)
    add(case, 'cost matrices', pairs, costs, one, center, before)
    matrices = costs(one, center, before)
    least = {}
    for name, solve in compiled.items():
      solved = [*map(solve, matrices)]
      least[name] = sum(
        float(np.take_along_axis(np.asarray(cost), np.asarray(s)[:, None], 1).sum())
        if name == 'ours'
        else float(np.asarray(cost)[np.asarray(s), np.arange(len(s))].sum())
        for cost, s in zip(matrices, solved, strict=True)
      )
      add(case, f'assignment, {name}', pairs, lambda s=solve: [*map(s, matrices)])  # noqa: B023
    hosts = [*map(np.asarray, matrices)]
    add(
      case,
      'assignment, SciPy',
      pairs,
      lambda: [*map(optimize.linear_sum_assignment, hosts)],  # noqa: B023
    )
    best = [optimize.linear_sum_assignment(cost) for cost in hosts]
    optimum = sum(float(c[i].sum()) for c, i in zip(hosts, best, strict=True))
    np.testing.assert_allclose([*least.values()], optimum, rtol=1e-5)
    add(case, 'permutation', _ALL, in_order, one, permutation)
    stack = tree.repeat(one, num_clients)
    each = _ALL / num_clients
    add(case, 'E-step', each, nearest, stack, centers, apart)
    if case == 'near':
      add(case, 'E-step, nothing skipped', each, nearest, stack, centers, touching)
  print(common.table(rows, COLUMNS))
  common.save('matching', mesh, rows)


if __name__ == '__main__':
  app.run(main)
