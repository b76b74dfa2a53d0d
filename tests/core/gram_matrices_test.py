"""Inner products of models: about their mean, by blocks, and split over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import gram_matrices, sharding
from fesem_jax.core.gram_matrices import centered_gram, inner_products
from tests.support import helpers

SHAPES = {'kernel': (3, 3, 5), 'bias': (7,), 'scale': (), 'wide': (2, 40)}
ROWS = np.array([13, 2, 7, 7, 0])


@pytest.fixture
def stack():
  rng = np.random.default_rng(0)
  found = {name: rng.normal(size=(16, *s)) for name, s in SHAPES.items()}
  return {name: x.astype(np.float32) for name, x in found.items()}


def expected(stack, rows=None, origin=None):
  flat = np.concatenate([x.reshape(16, -1) for x in stack.values()], axis=1)
  flat = flat.astype(np.float64) if rows is None else flat.astype(np.float64)[rows]
  flat = flat if origin is None else flat - flat[origin]
  return flat @ flat.T


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('block', [16, 200, 2**24])
@pytest.mark.parametrize('options', [{}, {'origin': 3}, {'rows': ROWS, 'origin': 1}])
def test_products_of_all_pairs(stack, devices, block, options, monkeypatch):
  monkeypatch.setattr(
    gram_matrices, '_BLOCK', block
  )  # Numbers: parts of a layer, or all.
  mesh = sharding.client_mesh(devices)
  given = {name: jnp.asarray(x) for name, x in options.items()}

  @jax.jit
  def products(stack):
    return inner_products(sharding.split_clients(stack, mesh), mesh, **given)

  np.testing.assert_allclose(
    products(stack), expected(stack, **options), rtol=1e-5, atol=1e-5
  )


def test_products_are_about_the_mean_and_zero_where_not_valid():
  points, _ = helpers.blobs(8)
  valid = np.arange(8) != 2
  points[2] = np.nan
  got = np.asarray(centered_gram(helpers.as_stack(points), jnp.asarray(valid)))
  kept = points[valid].astype(np.float64)
  kept -= kept.mean(axis=0)
  np.testing.assert_allclose(
    got[np.ix_(valid, valid)], kept @ kept.T, rtol=1e-3, atol=1e-2
  )
  assert not got[2].any()
  assert not got[:, 2].any()


def test_models_that_lie_close_together_keep_their_digits():
  rng = np.random.default_rng(1)
  points = 1000 + rng.normal(size=(6, 30)).astype(np.float32)
  got = centered_gram(helpers.as_stack(points), jnp.ones(6, bool))
  about = points.astype(np.float64) - points.astype(np.float64).mean(axis=0)
  np.testing.assert_allclose(got, about @ about.T, rtol=1e-5, atol=1e-4)
