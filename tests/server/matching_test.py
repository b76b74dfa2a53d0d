import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fesem_jax import models
from fesem_jax.core import platforms, sharding, tree
from fesem_jax.core.platforms import per_device
from fesem_jax.models.builders import OF_TOKENS
from fesem_jax.server import hidden_units, matching
from tests.support.nights import rest_by_night

# What the tests know of the models: layers that hold kernels, in their order.
NETWORKS = {
  'mlp': ((6,), ['dense0', 'dense1', 'logits']),
  'small_cnn': ((8, 8), ['conv0', 'conv1', 'dense', 'logits']),
  'celeba_cnn': ((20, 20, 3), ['conv0', 'conv1', 'conv2', 'conv3', 'logits']),
}
CLASSES, HIDDEN = 3, (7, 5)
EXACT, NOISY, NEAR, UNLIKE = range(4)  # The clients.
PLANTED = {EXACT: 1, NOISY: 0}  # Which centers they are permuted copies of.


def build(name):
  return models.build(name, NETWORKS[name][0], CLASSES, HIDDEN)


def norm_of(name, layer):
  return layer.replace('conv', 'norm') if name == 'celeba_cnn' else None


def random_order(name, layer, count, rng):
  """An order of a layer's units that the network's function does not see."""
  if norm_of(name, layer) is None:
    return rng.permutation(count)
  inside = [rng.permutation(4) for _ in range(8)]  # 8 groups of 4 channels.
  return np.concatenate([4 * g + inside[g] for g in rng.permutation(8)])


def with_orders(name, params, orders):
  """NumPy params whose hidden units stand in other orders."""
  params = jax.tree.map(np.asarray, params)
  out = {n: dict(layer) for n, layer in params.items()}
  for (layer, order), following in zip(
    orders.items(), NETWORKS[name][1][1:], strict=True
  ):
    for part in filter(None, (layer, norm_of(name, layer))):
      out[part] = {n: x[..., order] for n, x in out[part].items()}
    kernel = out[following]['kernel']
    out[following]['kernel'] = (
      np.concatenate(
        [block[order] for block in np.split(kernel, len(kernel) // len(order))]
      )
      if kernel.ndim == 2
      else kernel[:, :, order]
    )
  return out


def planted_orders(name, params, rng):
  hidden = NETWORKS[name][1][:-1]
  sizes = {layer: params[layer]['bias'].size for layer in hidden}
  return {n: random_order(name, n, size, rng) for n, size in sizes.items()}


def reference_orders(name, params, center):
  """The matching in float64, from its definition, for one model and one center."""
  params, center = (
    jax.tree.map(lambda x: np.asarray(x, np.float64), p) for p in (params, center)
  )
  orders = {}
  for layer in NETWORKS[name][1][:-1]:
    stay = {
      n: np.arange(params[n]['bias'].size) for n in NETWORKS[name][1][:-1]
    } | orders
    ours = with_orders(name, params, stay)
    parts = [layer, *filter(None, [norm_of(name, layer)])]

    def vectors(p, parts=parts):
      arrays = [x.reshape(-1, x.shape[-1]) for n in parts for x in p[n].values()]
      return np.concatenate(arrays).T

    u, v = vectors(ours), vectors(center)
    cost = np.square(v[:, None] - u[None]).sum(axis=2)
    orders[layer] = (
      linear_sum_assignment(cost)[1]
      if norm_of(name, layer) is None
      else grouped_assignment(cost)
    )
  return orders


def grouped_assignment(cost):
  """The best order of channels that keeps groups of 4 together, by trying all."""
  some = [np.array(p) for p in itertools.permutations(range(4))]
  inside = {}
  for g, h in itertools.product(range(8), repeat=2):
    block = cost[4 * g : 4 * g + 4, 4 * h : 4 * h + 4]
    sums = [block[np.arange(4), p].sum() for p in some]
    inside[g, h] = min(sums), some[int(np.argmin(sums))]
  groups = np.array([[inside[g, h][0] for h in range(8)] for g in range(8)])
  best = linear_sum_assignment(groups)[1]
  return np.concatenate([4 * h + inside[g, h][1] for g, h in enumerate(best)])


def test_channels_are_matched_within_groups_that_stay_together():
  cost = np.random.default_rng(0).random((32, 32)).astype(np.float32)
  order = jax.jit(matching._order, static_argnums=1)(cost, 8)
  np.testing.assert_array_equal(order, grouped_assignment(cost))


def shaken(params, rng, scale):
  """Biases and scales start equal for all units, which no client's stay."""
  return jax.tree.map(
    lambda x: np.asarray(x + scale * rng.normal(size=x.shape), np.float32), params
  )


def stacked(trees):
  return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *trees)


def squared_distance(a, b):
  return sum(
    np.square(np.float64(x) - np.float64(y)).sum()
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


class Case:
  """Clients and centers of one network, and what `nearest` says of them."""

  def __init__(self, name):
    rng = np.random.default_rng(1)
    self.name, self.model = name, build(name)
    self.layers = hidden_units.layers_of(self.model)

    init = jax.jit(self.model.init)
    centers = [shaken(init(jax.random.key(i)), rng, 0.1) for i in range(3)]
    self.planted = {
      client: planted_orders(name, centers[k], rng) for client, k in PLANTED.items()
    }
    clients = [
      with_orders(name, centers[k], self.planted[client])
      for client, k in PLANTED.items()
    ]
    clients[NOISY] = shaken(clients[NOISY], rng, 1e-3)
    clients += [
      shaken(centers[2], rng, 1e-3),
      shaken(init(jax.random.key(9)), rng, 0.1),
    ]
    centers.append(centers[0])  # Ties with the first.
    self.clients, self.centers = clients, centers
    self.stack, self.references = stacked(clients), stacked(centers)
    self.apart = jax.jit(functools.partial(matching.separations, self.layers))(
      self.references
    )
    self._nearest = jax.jit(functools.partial(matching.nearest, self.layers))
    self.found = self.nearest(self.apart)

  def nearest(self, apart):
    result = self._nearest(self.stack, self.references, apart)
    return jax.tree.map(np.asarray, result)


@functools.cache
def made(name):
  return Case(name)


@pytest.fixture(params=rest_by_night(NETWORKS, by_day=2))
def case(request):
  return made(request.param)


@pytest.fixture
def mlp():
  return made('mlp')


def test_nearest_is_that_of_the_reference_in_float64(case):
  clusters, distances, aligned = case.found
  for i, client in enumerate(case.clients):
    all_orders = [reference_orders(case.name, client, c) for c in case.centers]
    candidates = [with_orders(case.name, client, orders) for orders in all_orders]
    want = [
      squared_distance(*pair) for pair in zip(candidates, case.centers, strict=True)
    ]
    assert clusters[i] == int(np.argmin(want))
    np.testing.assert_allclose(distances[i], min(want), rtol=1e-4, atol=1e-9)
    best = candidates[clusters[i]]
    for got, right in zip(
      jax.tree.leaves(tree.unstack(aligned, i)), jax.tree.leaves(best), strict=True
    ):
      np.testing.assert_array_equal(got, right)
  assert clusters.dtype == np.int32


def test_an_aligned_model_is_the_same_function(case):
  aligned = case.found[2]
  x = jax.random.normal(jax.random.key(3), (5, *NETWORKS[case.name][0]))
  apply = jax.jit(case.model.apply)
  for i, client in enumerate(case.clients):
    got, want = apply(tree.unstack(aligned, i), x), apply(client, x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
  assert squared_distance(tree.unstack(aligned, UNLIKE), case.clients[UNLIKE]) > 1


def test_skipping_cost_matrices_changes_nothing(case):
  near = hidden_units.distances(
    *(hidden_units.incoming(case.layers[0], p[k], None)
      for p, k in ((case.clients, NEAR), (case.centers, 2)))
  )  # fmt: skip
  assert (near <= case.apart[0][2] / 4).all()  # Here they are skipped ...
  never = jax.tree.map(jnp.zeros_like, case.apart)  # ... and now they are not.
  for got, want in zip(
    jax.tree.leaves(case.nearest(never)), jax.tree.leaves(case.found), strict=True
  ):
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_separations_are_bounds_from_below(case):
  for layer, apart in zip(case.layers[:-1], case.apart, strict=True):
    for k, center in enumerate(case.centers):
      columns = np.concatenate(hidden_units.incoming(layer, center, None))
      vectors = columns.T.astype(np.float64)
      exact = np.square(vectors[:, None] - vectors[None]).sum(axis=2)
      np.fill_diagonal(exact, np.inf)
      assert (apart[k] <= exact.min(axis=1)).all()
      np.testing.assert_allclose(apart[k], exact.min(axis=1), rtol=1e-3)


def first(stack):
  return jax.tree.map(lambda x: x[:1], stack)


def rows(stack):
  return [tree.unstack(stack, i) for i in range(len(jax.tree.leaves(stack)[0]))]


def test_align_to_one_reference_or_to_one_each(mlp):
  align = jax.jit(functools.partial(matching.align, mlp.layers))
  to_one = rows(align(mlp.stack, first(mlp.references)))
  choice = jnp.array([1, 0, 2, 0])
  to_chosen = rows(align(mlp.stack, tree.take(mlp.references, choice)))
  for i, client in enumerate(mlp.clients):
    for row, k in ((to_one[i], 0), (to_chosen[i], choice[i])):
      orders = reference_orders('mlp', client, mlp.centers[k])
      assert squared_distance(row, with_orders('mlp', client, orders)) == 0


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_devices_and_models_side_by_side_change_nothing(mlp, monkeypatch, backend):
  if backend == 'gpu':
    monkeypatch.setattr(platforms, 'choose', lambda cpu, other, *args: other(*args))
  monkeypatch.setattr(matching, '_BATCH', 3)  # Of four models.
  mesh = sharding.client_mesh(2 if backend == 'cpu' else 1)

  def on_device(stack, centers, apart):
    return matching.nearest(mlp.layers, stack, centers, apart), None

  nearest = jax.jit(per_device(on_device, mesh, 1))
  got, _ = nearest(mlp.stack, mlp.references, mlp.apart)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(mlp.found), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_without_hidden_units_the_distance_is_the_plain_one():
  model = models.build('logistic', (6,), CLASSES)
  layers = hidden_units.layers_of(model)
  stack = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 5))
  centers = tree.take(stack, jnp.array([3, 1]))
  _, distances, aligned = matching.nearest(layers, stack, centers)
  np.testing.assert_allclose(
    distances, tree.squared_distances(stack, centers).min(axis=1), rtol=1e-6
  )
  assert squared_distance(aligned, stack) == 0
  assert squared_distance(matching.align(layers, stack, first(centers)), stack) == 0


# Others have layers beside each other, or states.
CHAINS = [n for n in models.NAMES if not n.startswith('resnet') and n not in OF_TOKENS]


@pytest.mark.parametrize('name', CHAINS)
def test_layers_of_every_chain_are_known(name):
  shape = (84, 84, 3) if name == 'celeba_cnn' else (28, 28)
  model = models.build(name, shape, 10, (4,) * 11)
  layers = hidden_units.layers_of(model)
  assert layers[-1] == ('logits', '', 1)
  if name == 'celeba_cnn':
    assert layers[:-1] == tuple((f'conv{i}', f'norm{i}', 8) for i in range(4))
  elif name == 'mlp':  # Not as names would be sorted: 'dense10' before 'dense2'.
    assert [layer.name for layer in layers[:-1]] == [f'dense{i}' for i in range(11)]


def test_units_farther_than_half_the_separation_are_matched():
  # Units at 0 and 1, and those of a client at 0.55 and 0.45, which change places.
  def with_units(*at):
    return {
      'dense0': {'kernel': jnp.array([[at]]), 'bias': jnp.zeros((1, 2))},
      'logits': {'kernel': jnp.zeros((1, 2, 3)), 'bias': jnp.zeros((1, 3))},
    }

  layers = hidden_units.layers_of(models.build('mlp', (1,), 3, (2,)))
  center, client = with_units(0.0, 1.0), with_units(0.55, 0.45)
  apart = matching.separations(layers, center)
  np.testing.assert_allclose(apart[0], [[1.0, 1.0]], rtol=1e-4)
  _, distance, aligned = matching.nearest(layers, client, center, apart)
  np.testing.assert_allclose(aligned['dense0']['kernel'], [[[0.45, 0.55]]])
  np.testing.assert_allclose(distance, [2 * 0.45**2], rtol=1e-5)
