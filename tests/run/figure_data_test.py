"""The numbers behind the figures of clients, against float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.data import attacks
from fesem_jax.run import figure_data
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.compression import compression
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers
from tests.support.methods import GROUPS, SIZES, initial, matrix

KEY = jax.random.key(11)
NAMES = ['north', 'south']


def draw(algorithm, state, data):
  program, args = figure_data.local_models(algorithm, state, data, 0)
  return figure_data.draw(program, args, np.arange(6))


@functools.cache
def drawn(name, sends=None, **options):
  """A method's start, the clients' portrait and the models that are portrayed."""
  data = helpers.federation(SIZES, groups=GROUPS)
  info = dataclasses.replace(
    data.info, cluster_names=tuple(NAMES), class_names=('a', 'b')
  )
  data = dataclasses.replace(data, info=info)
  local = helpers.local(chunk=2)._replace(dropout_rate=0.5, sends=sends)
  algorithm = algorithms.build(name, local, **options)
  state = initial(algorithm, data)
  return data, state, draw(algorithm, state, data)


def test_components_are_those_of_the_models_as_the_method_trains_them():
  prox_lambda = 0.4
  data, state, result = drawn('fesem', num_clusters=2, prox_lambda=prox_lambda)
  local = helpers.local(chunk=2)
  trained = train_cohort(
    local, ClientModels(state.centers, state.assignment), data, helpers.everyone(data),
    prng_streams.folded(jax.random.key(0), prng_streams.PORTRAIT), penalty=prox_lambda,
  )  # fmt: skip
  points = matrix(trained.params)
  points -= points.mean(axis=0)
  np.testing.assert_array_equal(result['sampled'], range(6))
  got = result['coordinates'].astype(np.float64)
  # Coordinates are unique but for rotations: inner products and shares are not.
  np.testing.assert_allclose(got @ got.T, points @ points.T, rtol=1e-3, atol=1e-5)
  shares = np.linalg.svd(points, compute_uv=False) ** 2
  shares /= shares.sum()
  np.testing.assert_allclose(result['variance'][:5], shares[:5], rtol=1e-3, atol=1e-5)
  np.testing.assert_array_equal(result['assignment'], state.assignment)


@pytest.mark.parametrize(
  ('name', 'sends'),
  [
    ('fesem', compression('top_k(0.1)')),
    ('hypo_cluster', differential_privacy(0.1, 2.0, where='client', delta=0)),
  ],
)
def test_neither_compression_nor_noise_is_in_the_portrait(name, sends):
  data, state, result = drawn(name, sends, num_clusters=2)
  clear = algorithms.build(name, helpers.local(chunk=2), num_clusters=2)
  want = draw(clear, state, data)
  # Signs of components are arbitrary.
  for key in ('coordinates', 'variance'):
    np.testing.assert_allclose(abs(result[key]), abs(want[key]), rtol=1e-3, atol=1e-4)
  names = figure_data.client_data(data)
  np.testing.assert_array_equal(names['truth'], GROUPS)
  assert names['truth_names'].tolist() == NAMES
  assert names['class_names'].tolist() == ['a', 'b']


@pytest.mark.parametrize('name', ['hypo_cluster', 'fesem'])  # This has a `train`.
def test_lies_of_bad_clients_are_not_in_the_portrait(name):
  data, state, want = drawn(name, num_clusters=2)
  algorithm = algorithms.build(name, helpers.local(chunk=2), num_clusters=2)
  bad = attacks.apply(data, 'replacement(50)', 0.5)
  result = draw(algorithm, state, bad)
  for key in ('coordinates', 'variance'):
    np.testing.assert_allclose(abs(result[key]), abs(want[key]), rtol=1e-3, atol=1e-4)


def test_sheets_show_the_clients_nearest_to_the_mean_of_their_cluster():
  rng = np.random.default_rng(0)
  data = helpers.federation([3] * 6, shape=(4, 4))
  coordinates = rng.normal(size=(6, 3))
  assignment = np.array([0, 0, 0, 1, 1, 0])
  picture = {
    'assignment': assignment,
    'sampled': np.arange(6),
    'coordinates': coordinates,
  }
  sheets = figure_data.sheets(picture, data)
  for k in (0, 1):
    mine = np.flatnonzero(assignment == k)
    apart = np.linalg.norm(coordinates[mine] - coordinates[mine].mean(axis=0), axis=1)
    want = mine[np.argsort(apart)]
    np.testing.assert_array_equal(sheets['sheet_clients'][k][: len(want)], want)
    assert (sheets['sheet_clients'][k][len(want) :] == -1).all()
    images = sheets['sheet_images'][k, 0, :3]
    np.testing.assert_array_equal(
      np.sort(images.sum(axis=(1, 2))),
      np.sort(data.client(want[0])[0].sum(axis=(1, 2))),
    )


def test_a_sketch_keeps_the_geometry_of_large_models():
  rng = np.random.default_rng(1)
  points = rng.normal(size=(5, 60_000)).astype(np.float32)
  points[1] = points[0] + 0.05 * points[1]  # Two that lie close together.
  stack = {
    'a': jnp.asarray(points[:, :50_000].reshape(5, 100, 500)),
    'b': jnp.asarray(points[:, 50_000:]),
  }
  origin = tree.unstack(stack, slice(4, 5))
  short = np.asarray(figure_data.sketch(KEY, stack, origin), np.float64)
  assert short.shape == (5, 16381)

  def apart(x):
    return np.linalg.norm(x[:, None] - x[None], axis=-1)

  pairs = np.triu_indices(5, 1)
  ratio = apart(short)[pairs] / apart(points.astype(np.float64))[pairs]
  np.testing.assert_allclose(ratio, 1, atol=0.03)
  # So it does where only the weights of a few units of a layer differ.
  layer = np.zeros((2, 1568, 1024), np.float32)
  for units in (1, 8):
    layer[1, :, :units] = rng.normal(size=(1568, units))
    few_units = {'kernel': jnp.asarray(layer), 'bias': jnp.zeros((2, 1024))}
    both = np.asarray(
      figure_data.sketch(KEY, few_units, tree.unstack(few_units, slice(0, 1)))
    )
    ratio = np.linalg.norm(both[1] - both[0]) / np.linalg.norm(layer[1])
    np.testing.assert_allclose(ratio, 1, atol=0.08)
  # The whole in parts is the whole, and small models stay as they are.
  one = figure_data.sketch(KEY, tree.unstack(stack, slice(2, 3)), origin)
  np.testing.assert_allclose(one[0], short[2], rtol=1e-4, atol=1e-3)
  few = {'a': jnp.asarray(points[:, :30])}
  zero = {'a': jnp.zeros((1, 30))}
  np.testing.assert_array_equal(figure_data.sketch(KEY, few, zero), points[:, :30])
