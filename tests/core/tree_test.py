import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import tree
from tests.support import helpers


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
  got = tree.squared_distances({'w': jnp.asarray(points)}, {'w': jnp.asarray(centers)})
  want = (
    (points[:, None].astype(np.float64) - centers[None].astype(np.float64)) ** 2
  ).sum(-1)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  gap = np.abs(want[:, 0] - want[:, 1]) / want[:, 0]
  clear = gap > 1e-6  # Closer than that is beyond float32.
  assert clear.mean() > 0.9
  agree = np.asarray(got).argmin(1) == want.argmin(1)
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
  got, want = tree.rows_of_few(whole, ids), tree.take(whole, ids)
  assert got.keys() == want.keys()
  for name in want:
    np.testing.assert_array_equal(got[name], want[name])
