"""The rules by which new clients join, against float64, and what they are given."""

import chex
import jax
import numpy as np
import pytest

from fesem_jax.analysis import joining
from fesem_jax.core.batching import Schedule
from fesem_jax.training.compression import compression
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers, reference

SIZES = [9, 4, 12, 1, 7, 6, 0, 10]
KEY = 5


def centers_of(local, count=3, spread=0.3):
  """Centers about one random model, as those of a run lie about their start."""
  start = helpers.first_model(local)
  others = helpers.first_models(local, count, 1)
  return jax.tree.map(lambda a, b: a[None] + spread * b, start, others)


def joined(data, chunk=2, devices=1, centers=None, **changes):
  local = helpers.local(chunk=chunk, devices=devices)._replace(**changes)
  centers = centers_of(local) if centers is None else centers
  return joining.by_rules(local, centers, data, jax.random.key(KEY))


@pytest.fixture(scope='module')
def data():
  return helpers.federation(SIZES, seed=3)


@pytest.fixture(scope='module')
def result(data):
  return joined(data)


@pytest.fixture(scope='module')
def expected(data):
  """Rule -> [M] the center that the float64 reference joins."""
  local = helpers.local()
  centers = centers_of(local)
  models = [reference.from_params(centers, k) for k in range(3)]
  points = reference.vectors(centers)
  start = [
    tuple(np.mean(parts, axis=0) for parts in zip(*layer, strict=True))
    for layer in zip(*models, strict=True)
  ]
  want = {rule: [] for rule in joining.RULES}
  for i, size in enumerate(SIZES):
    if not size:
      continue
    batches = helpers.batches(data, local.schedule, i, jax.random.key(KEY))
    trained = reference.flat(reference.local_sgd(start, batches, 0.1)[0])
    want['weights'].append(reference.nearest(trained[None], points)[0])
    losses = [reference.loss_and_gradient(m, *data.client(i))[0] for m in models]
    want['loss'].append(np.argmin(losses))
  return want


def of_rule(result, rule):
  return np.asarray(result[rule])[np.array(SIZES) > 0]


@pytest.mark.parametrize('rule', joining.RULES)
def test_each_rule_matches_its_reference(result, expected, rule):
  np.testing.assert_array_equal(of_rule(result, rule), expected[rule])
  # The rules are told apart by these clients.
  others = [expected[other] for other in joining.RULES if other != rule]
  assert expected[rule] not in others


@pytest.mark.parametrize(('chunk', 'devices'), [(3, 1), (1, 2)])
def test_neither_chunks_nor_devices_matter(data, result, chunk, devices):
  chex.assert_trees_all_equal(joined(data, chunk, devices), result)


def test_all_join_alike_whatever_the_run_did(data, result):
  again = joined(data, dropout_rate=0.9, lr_schedule=lambda r: 0.0 * r)
  chex.assert_trees_all_equal(again, result)


@pytest.mark.parametrize(
  'change',
  [
    {'local_lr_schedule': lambda step: 1.0 * (step < 2)},
    {'sends': compression('top_k(0.1)')},
    {'sends': differential_privacy(1e-3, 1.0, delta=0)},
    {'dropout_rate': 0.9},
  ],
  ids=['schedule', 'compressed', 'noised', 'dropout'],
)
def test_training_alone_matches_the_reference_whatever_the_run_did(data, change):
  local = helpers.local()._replace(schedule=Schedule(4, epochs=3), **change)
  key = jax.random.key(7)
  models = joining.train_alone(local, data, key)
  of_model, of_training = jax.random.split(key)
  params = jax.tree.map(lambda x: x[None], local.model.init(of_model))
  start = reference.from_params(params, 0)
  for i in (0, 3):
    batches = helpers.batches(data, local.schedule, i, of_training)
    want = reference.flat(reference.local_sgd(start, batches, 0.1)[0])
    got = reference.flat(reference.from_params(models.personal, i))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-6)
