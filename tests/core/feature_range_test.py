"""Features far from 1 are told of when data are loaded, and common ones are not."""

import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.core import feature_range
from fesem_jax.utils.errors import Diverged
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.stored_rows import StoredRows
from tests.support.sources import own_arrays

RNG = np.random.default_rng(0)
T = 600


def arrays(x, **others):
  return {'x': x, 'y': np.arange(len(x)) % 3, 'client': np.arange(len(x)) % 4} | others


def test_the_range_is_of_what_models_see():
  x = np.array([[0, 200, 7], [100, 50, 7], [50, 0, 7]], np.uint8).reshape(3, 3, 1)
  for rows in (x, StoredRows(x)):
    least, most, size = found = feature_range.of_features(rows, 0.1)
    np.testing.assert_allclose(least, [0, 0, 0.7])
    np.testing.assert_allclose(most, [10, 20, 0.7])
    wanted = np.sqrt(np.square(0.1 * x.astype(float)).mean(axis=0)).ravel()
    np.testing.assert_allclose(size, wanted)
    assert found.in_words() == 'from 0 to 20'
  np.testing.assert_allclose(feature_range.of_features(x[:1], 0.1).size, [0, 20, 0.7])


@pytest.mark.parametrize('dtype', ['int64', 'float32', 'int16'])
def test_pixels_that_are_not_scaled_are_told_of_once(caplog, dtype):
  images = RNG.integers(0, 256, (T, 8, 8)).astype(dtype)
  for _ in range(2):
    fj.data.load('mine', arrays=arrays(images))
  (said,) = caplog.messages
  assert said.startswith('mine: x has values from 0 to 255, far from 1;')
  assert said.endswith('give scale, e.g. 1/255.')
  caplog.clear()
  flat = images.reshape(T, 64)
  fj.data.load('mine', arrays=arrays(flat))
  (said,) = caplog.messages
  assert '61 more' in said
  assert said.endswith('or give scale: 1/255 for pixels, 1 for tokens.')
  caplog.clear()
  fj.data.load('mine', arrays=arrays(images, scale=1 / 255))
  fj.data.load('mine', arrays=arrays(flat, scale=1))  # Tokens, on purpose.
  fj.data.load('mine', arrays=arrays(images.astype('uint8')))
  assert not caplog.messages
  fj.FederatedData.from_arrays(images, np.arange(T) % 3, [T])
  assert caplog.messages[0].startswith('`x` has values from 0 to 255, far from 1;')


def test_raw_columns_are_named(caplog):
  x = np.stack([RNG.normal(size=T), RNG.normal(1990, 9, T), RNG.normal(size=T)], 1)
  fj.data.load('mine', arrays=arrays(x.round(3)))
  (said,) = caplog.messages
  low, high = x[:, 1].min(), x[:, 1].max()
  assert f'has in column 1 {low:.4g} to {high:.4g}, far from 1;' in said
  assert said.endswith('standardize the columns.')


def test_pixels_that_are_scaled_twice_are_told_of(caplog):
  for x in (
    RNG.random((T, 8, 8)) / 255,
    RNG.integers(0, 2, (T, 8, 8)).astype(np.uint8),  # Black and white, times 1/255.
  ):
    caplog.clear()
    warn_once.cache_clear()
    fj.data.load('mine', arrays=arrays(x))
    (said,) = caplog.messages
    assert 'has no value beyond 0.0039' in said


def test_a_test_split_of_another_scale_is_told_of(caplog):
  x = RNG.normal(size=(T, 8, 8))
  split = np.arange(T) // 4 % 2
  x[split == 1] *= 255
  fj.data.load('mine', arrays=arrays(x, split=split))
  (said,) = caplog.messages
  assert 'test examples have a mean absolute value of' in said


def standardized(x):
  return (x - x.mean(axis=0)) / x.std(axis=0)


@pytest.mark.parametrize(
  'x',
  {
    'standard': standardized(RNG.normal(size=(T, 9))),
    'heavy tails': standardized(np.exp(2 * RNG.normal(size=(T, 9)))),
    'rare events': standardized((np.arange(T) == 3)[:, None] + np.zeros((T, 2))),
    'images in 0..1': RNG.random((T, 8, 8)),
    'images in -1..1': 2 * RNG.random((T, 8, 8, 3)) - 1,
    'normalized images': (RNG.random((T, 8, 8, 3)) - 0.45) / 0.22,
    'one-hot': np.eye(5000)[RNG.integers(0, 5000, T)],
    'embeddings': RNG.normal(size=(T, 768)) / np.sqrt(768),
    'counts': RNG.poisson(RNG.exponential(2, 50), (T, 50)),
    'grades': RNG.integers(1, 6, (T, 4)),
    'nothing': np.zeros((T, 2)),
  }.values(),
)
def test_common_features_are_not_told_of(caplog, x):
  fj.data.load('mine', arrays=arrays(x) | {'y': RNG.integers(0, 3, T)})
  fj.FederatedData.from_arrays(x, np.arange(T) % 3, [T])
  assert not caplog.messages


def test_whole_numbers_beyond_float32_are_told_of(caplog):
  for x, told in (
    (2**24 + np.arange(12), True),
    (2**24 + np.arange(12.0), True),
    (2**25 + 2 * np.arange(12), True),
    (-(2**60) - np.arange(12), True),
    (2**24 - np.arange(12), False),
    (2**25 + 4 * np.arange(12), False),  # Exact all the same.
    (1e9 + np.arange(12) / 8, False),  # Measurements are rounded anyway.
  ):
    caplog.clear()
    warn_once.cache_clear()
    fj.data.load('mine', arrays=own_arrays(x=x[:, None]))
    assert any('whole numbers beyond 2^24' in m for m in caplog.messages) == told
    caplog.clear()
    fj.FederatedData.from_arrays(x[:, None], np.arange(12) % 2, [12])
    assert any('whole numbers beyond 2^24' in m for m in caplog.messages) == told


def test_columns_that_float32_blurs_are_told_of(caplog):
  seconds = 1.7e9 + 300 * RNG.random(12)  # Float32 has multiples of 128.
  for column, told in (
    (seconds, True),
    (seconds - 1.7e9, False),
    (1e7 + RNG.random(12), True),
    (1e4 + RNG.random(12), False),
    (np.full(12, 1e9 / 3), False),
    (2.0**30 + 2.0**7 * (np.arange(12) % 2) + 0.0, False),  # Exact all the same.
  ):
    warn_once.cache_clear()
    x = np.stack([np.arange(12) / 12, column], axis=1)
    for load, named in (
      (lambda x: fj.data.load('mine', arrays=own_arrays(x=x)), '1'),
      (lambda x: fj.FederatedData.from_arrays(x, np.arange(12) % 2, [12]), '1'),
    ):
      caplog.clear()
      load(x)
      assert any(
        f'in column {named} values that become float32' in m for m in caplog.messages
      ) == told  # fmt: skip


def test_bytes_that_are_no_pixels_up_to_255_are_told_of(caplog):
  for most, told in ((16, True), (40, False)):
    caplog.clear()
    images = RNG.integers(0, most + 1, (T, 8, 8)).astype(np.uint8)
    fj.data.load('mine', arrays=arrays(images))
    assert any('models learn little' in m for m in caplog.messages) == told
    caplog.clear()
    fj.data.load('mine', arrays=arrays(images, scale=1 / most))
    assert not caplog.messages


@pytest.mark.nightly
def test_divergence_names_the_range_and_the_penalties_that_there_are():
  x = RNG.normal(size=(T, 2)) * [1, 1e9]
  train, test = fj.data.load('mine', arrays=arrays(x))
  model = fj.models.build('logistic', (2,), 3)
  local = fj.local_training(model, optax.sgd(1e30))
  for name, options, penalties in (
    ('fed_avg', {}, ''),
    ('hypo_cluster', {'num_clusters': 2}, ''),
    ('fed_prox', {}, ', or the penalty (`prox_mu`)'),
    ('fed_prox', {'prox_mu': 0}, ''),
    ('ditto', {}, ', or the penalty (`ditto_lambda`)'),
    ('fesem', {'num_clusters': 2}, ', or the penalty (`prox_lambda`)'),
  ):
    method = fj.algorithms.build(name, local, **options)
    with pytest.raises(Diverged) as e:
      fj.simulate(method, train, test, rounds=1)
    low, high = train.x.min(), train.x.max()
    wanted = (
      f'lower `learning_rate`{penalties}. Features go from {low:.4g} to {high:.4g}: '
      'bring them near 1 first.'
    )
    assert str(e.value).endswith(wanted), str(e.value)
