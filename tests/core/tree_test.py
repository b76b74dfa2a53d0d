import operator
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import tree
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import matrix


def test_take_and_put_are_rows():
  whole = helpers.two_layers(np.random.default_rng(0), 5)
  ids = jnp.array([3, 0, 5])  # 5 is nobody.
  rows = tree.take(whole, ids)
  np.testing.assert_array_equal(rows['a'], whole['a'][jnp.array([3, 0, 4])])
  other = tree.put(tree.zeros_like(whole), ids, rows)
  np.testing.assert_array_equal(other['b'][jnp.array([3, 0])], rows['b'][:2])
  np.testing.assert_array_equal(other['b'][jnp.array([1, 2, 4])], 0)


@pytest.mark.parametrize('size', [2000, 20_000])  # 20,000: blocks and a rest.
@pytest.mark.parametrize('offset', [0.0, 30.0])
def test_distances_of_near_ties_agree_with_float64(offset, size):
  # Two centers that differ by 1e-3 of the spread, all far from the origin: the
  # expanded form |w|^2 - 2wc + |c|^2 gets a third of these assignments wrong.
  rng = np.random.default_rng(2)
  common = offset + rng.normal(size=size)
  points = (common + 0.01 * rng.normal(size=(200, size))).astype(np.float32)
  centers = (common + 1e-5 * rng.normal(size=(2, size))).astype(np.float32)
  actual = tree.squared_distances(
    {'w': jnp.asarray(points)}, {'w': jnp.asarray(centers)}
  )
  expected = (
    (points[:, None].astype(np.float64) - centers[None].astype(np.float64)) ** 2
  ).sum(-1)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  gap = np.abs(expected[:, 0] - expected[:, 1]) / expected[:, 0]
  clear = gap > 1e-6  # Closer than that is beyond float32.
  assert clear.mean() > 0.9
  agree = np.asarray(actual).argmin(1) == expected.argmin(1)
  assert agree[clear].all()


def test_all_finite_looks_at_every_leaf():
  whole = helpers.two_layers(np.random.default_rng(3), 4)
  whole['a'] = whole['a'].at[1, 2, 1].set(jnp.nan)
  whole['b'] = whole['b'].at[3, 0].set(jnp.inf)
  np.testing.assert_array_equal(tree.all_finite(whole), [True, False, True, False])


@pytest.mark.parametrize('models', [1, 3, 4])
def test_rows_of_few_models_are_the_rows_that_are_taken(models, monkeypatch):
  def as_on_a_tpu(cpu, accelerator, *args, tpu):
    assert cpu is accelerator is tree.take
    return tpu(*args)

  monkeypatch.setattr(tree.platforms, 'choose', as_on_a_tpu)
  whole = helpers.two_layers(np.random.default_rng(4), models)
  whole['a'] = whole['a'].at[0].set(jnp.inf)  # Of another model: not to be seen.
  ids = jnp.array([2, 0, 1, 3, models])  # Beyond the end, the last.
  actual, expected = tree.rows_of_few(whole, ids), tree.take(whole, ids)
  assert actual.keys() == expected.keys()
  for name in expected:
    np.testing.assert_array_equal(actual[name], expected[name])


@pytest.mark.parametrize(('platform', 'selects'), [('cpu', False), ('tpu', True)])
def test_where_the_devices_are_known_rows_of_few_are_read_in_one_way(platform, selects):
  device = types.SimpleNamespace(platform=platform)
  mesh = types.SimpleNamespace(devices=np.array([device]))
  whole = helpers.two_layers(np.random.default_rng(6), 3)
  ids = jnp.array([2, 0, 1])
  traced = jax.make_jaxpr(lambda m: tree.rows_of_few(m, ids, mesh))(whole)
  assert ('gather' in str(traced)) != selects
  assert 'platform_index' not in str(traced)
  actual = tree.rows_of_few(whole, ids, mesh)
  np.testing.assert_array_equal(matrix(actual), matrix(tree.take(whole, ids)))


def test_rows_of_a_cohort_are_read_and_written():
  whole = helpers.two_layers(np.random.default_rng(5), 4)
  everyone = Cohort(np.arange(4), everyone=True)
  assert tree.rows_of(whole, everyone) is whole
  some = Cohort(jnp.array([2, 0, 4]), everyone=False)  # 4 is no client.
  rows = tree.rows_of(whole, some)
  np.testing.assert_array_equal(matrix(rows)[:2], matrix(whole)[[2, 0]])
  new = tree.zeros_like(rows)
  of_all = jax.tree.leaves(tree.with_rows(whole, everyone, new))
  assert all(map(operator.is_, of_all, jax.tree.leaves(new)))
  written = matrix(tree.with_rows(whole, some, new))
  assert not written[[0, 2]].any()
  np.testing.assert_array_equal(written[[1, 3]], matrix(whole)[[1, 3]])


def test_mixtures_and_choices_of_rows():
  whole = helpers.two_layers(np.random.default_rng(7), 3)
  other = helpers.two_layers(np.random.default_rng(8), 3)
  shares = np.array([[0.5, 0.25, 0.25], [0, 1, 0]], np.float32)
  expected = shares @ matrix(whole)
  np.testing.assert_allclose(matrix(tree.mixtures(shares, whole)), expected, rtol=1e-5)
  keep = jnp.array([True, False, True])
  chosen = matrix(tree.where(keep, whole, other))
  np.testing.assert_array_equal(chosen[[0, 2]], matrix(whole)[[0, 2]])
  np.testing.assert_array_equal(chosen[1], matrix(other)[1])


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_distances_are_of_all_layers(backend, monkeypatch):
  rng = np.random.default_rng(9)
  # From 8192 on, sums are of blocks of 4096, of 1024, and of the rest.
  sizes = (5, 8191, 8192, 8192 + 4096 + 2048 + 7)
  stack, centers = (
    {str(s): jnp.asarray(rng.normal(size=(n, s)), jnp.float32) for s in sizes}
    | {'matrix': jnp.asarray(rng.normal(size=(n, 3, 2)), jnp.float32)}
    for n in (4, 3)
  )
  a, b = (matrix(x).astype(np.float64) for x in (stack, centers))
  if backend == 'gpu':
    monkeypatch.setattr(
      tree.platforms, 'choose', lambda cpu, other, *args: other(*args)
    )
  actual = tree.squared_distances(stack, centers)
  expected = np.square(a[:, None] - b[None]).sum(axis=2)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  for size in sizes:  # Each alone, so that none hides behind another.
    x, y = (np.asarray(t[str(size)], np.float64) for t in (stack, centers))
    actual = tree.squared_distances({'w': stack[str(size)]}, {'w': centers[str(size)]})
    expected = np.square(x[:, None] - y[None]).sum(axis=2)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
  rows = tree.row_distances(stack, tree.take(centers, jnp.array([2, 0, 1, 1])))
  np.testing.assert_allclose(
    rows, np.square(a - b[[2, 0, 1, 1]]).sum(axis=1), rtol=1e-5
  )
  to_one = tree.row_distances(stack, tree.take(centers, jnp.array([1])))
  np.testing.assert_allclose(to_one, np.square(a - b[1]).sum(axis=1), rtol=1e-5)


def test_distances_of_rows_that_lie_close_together_keep_their_digits():
  rng = np.random.default_rng(0)
  a, b = (np.float32(100 + 1e-3 * rng.normal(size=(3, 50))) for _ in range(2))
  result = jax.jit(tree.row_distances)({'w': a}, {'w': b})
  expected = np.square(a.astype(np.float64) - b).sum(axis=1)
  np.testing.assert_allclose(result, expected, rtol=1e-5)
