"""Inner products of models: about their mean, by blocks, and split over devices."""

import jax
import numpy as np
import pytest

from fesem_jax.core import gram_matrices, sharding
from fesem_jax.core.gram_matrices import (
  centered_gram,
  cosines,
  inner_products,
  squared_distances,
)
from tests.support import helpers
from tests.support.methods import matrix
from tests.support.nights import rest_by_night

SHAPES = {'kernel': (3, 3, 5), 'bias': (7,), 'scale': (), 'wide': (2, 40)}
ROWS = np.array([13, 2, 7, 7, 0])


@pytest.fixture
def stack():
  rng = np.random.default_rng(0)
  result = {name: rng.normal(size=(16, *s)) for name, s in SHAPES.items()}
  return {name: x.astype(np.float32) for name, x in result.items()}


def expected(stack, rows=None, origin=None):
  flat = np.concatenate([x.reshape(16, -1) for x in stack.values()], axis=1)
  flat = flat.astype(np.float64) if rows is None else flat.astype(np.float64)[rows]
  flat = flat if origin is None else flat - flat[origin]
  return flat @ flat.T


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('block', rest_by_night([16, 200]))
@pytest.mark.parametrize('options', [{}, {'origin': 3}, {'rows': ROWS, 'origin': 1}])
@pytest.mark.parametrize('many', [6, 512])
def test_products_of_all_pairs(stack, devices, block, options, many, monkeypatch):
  # Numbers: parts of a layer, or all. Rows: 16 in parts of two, or not in parts.
  monkeypatch.setattr(gram_matrices, '_BLOCK', block)
  monkeypatch.setattr(gram_matrices, '_MANY', many)
  mesh = sharding.client_mesh(devices)
  arrays = {name: np.asarray(x) for name, x in options.items()}

  @jax.jit
  def products(stack):
    return inner_products(sharding.split_clients(stack, mesh), mesh, **arrays)

  np.testing.assert_allclose(
    products(stack), expected(stack, **options), rtol=1e-5, atol=1e-5
  )


def test_many_rows_that_parts_do_not_divide():
  points = np.random.default_rng(0).normal(size=(gram_matrices._MANY + 1, 300))
  actual = np.asarray(jax.jit(inner_products)({'w': points.astype(np.float32)}))
  np.testing.assert_allclose(actual, points @ points.T, rtol=1e-5, atol=1e-4)
  height = -(-len(actual) // gram_matrices._PARTS)
  first = actual[:height, height:]
  np.testing.assert_array_equal(actual[height:, :height], first.T)


def test_products_are_about_the_mean_and_zero_where_not_valid():
  points, _ = helpers.blobs(8)
  valid = np.arange(8) != 2
  points[2] = np.nan
  actual = np.asarray(jax.jit(centered_gram)(helpers.as_stack(points), valid))
  kept = points[valid].astype(np.float64)
  kept -= kept.mean(axis=0)
  np.testing.assert_allclose(
    actual[np.ix_(valid, valid)], kept @ kept.T, rtol=1e-3, atol=1e-2
  )
  assert not actual[2].any()
  assert not actual[:, 2].any()


def test_squared_distances_are_those_of_pairs_and_never_negative(stack):
  flat = np.concatenate([x.reshape(16, -1) for x in stack.values()], axis=1)
  flat = flat.astype(np.float64)
  want = np.square(flat[:, None] - flat[None]).sum(axis=2)
  np.testing.assert_allclose(
    jax.jit(squared_distances)(stack), want, rtol=1e-4, atol=1e-3
  )
  far = {name: x + np.float32(1000) for name, x in stack.items()}
  result = jax.jit(squared_distances)(far, None, np.int32(3))
  np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-2)
  same = np.asarray(jax.jit(squared_distances)({'w': np.full((3, 7), 0.1, np.float32)}))
  assert (same >= 0).all()
  np.testing.assert_allclose(same, 0, atol=1e-6)


def test_cosines_are_of_whole_models():
  rng = np.random.default_rng(2)
  ours, others = helpers.two_layers(rng, 4), helpers.two_layers(rng, 3)
  ours = {name: np.array(x) for name, x in ours.items()}
  ours['a'][1] = ours['b'][1] = 0
  result = jax.jit(cosines)(ours, others)
  u, v = (matrix(x).astype(np.float64) for x in (ours, others))
  lengths = np.linalg.norm(u, axis=1)[:, None] * np.linalg.norm(v, axis=1)[None]
  want = np.divide(u @ v.T, lengths, where=lengths > 0, out=np.zeros((4, 3)))
  np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-6)
  tiny = {name: np.float32(1e-3) * x for name, x in ours.items()}
  np.testing.assert_allclose(jax.jit(cosines)(tiny, others), want, rtol=1e-4, atol=1e-6)


def test_products_about_the_mean_of_some_rows_are_of_these_alone():
  points, _ = helpers.blobs(8)
  rows, valid = np.array([6, 1, 4]), np.array([True, False, True])
  actual = jax.jit(centered_gram, static_argnums=2)(
    helpers.as_stack(points), valid, None, rows
  )
  apart = (points[6].astype(np.float64) - points[4]) / 2
  want = np.zeros((3, 3))
  want[np.ix_([0, 2], [0, 2])] = apart @ apart * np.array([[1, -1], [-1, 1]])
  np.testing.assert_allclose(actual, want, rtol=1e-5, atol=1e-4)
