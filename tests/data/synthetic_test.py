"""Generated federations have the clusters that are planted in them."""

import itertools

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError


def test_synthetic_families_are_seeded_and_planted():
  for name in ('synthetic', 'synthetic_linear', 'synthetic_mixture', 'synthetic_table'):

    def load(seed, name=name):
      groups = {'partition_groups': 3} if name != 'synthetic' else {}
      return data.load(
        name, num_clients=12, examples_per_client=40, seed=seed, **groups
      )

    train, test = load(0)
    assert np.asarray(train.sizes()).tolist() == [40] * 12
    assert np.asarray(test.sizes()).tolist() == [10] * 12
    np.testing.assert_array_equal(train.x, load(0)[0].x)
    assert not np.array_equal(train.x, load(1)[0].x)
    planted = None if name == 'synthetic' else (np.arange(12) % 3).tolist()
    clusters = train.info.clusters
    assert (None if clusters is None else clusters.tolist()) == planted


def test_synthetic_labels_follow_the_planted_models():
  # One least-squares model for each group explains its labels, not the others'.
  train, test = data.load(
    'synthetic_mixture', num_clients=4, examples_per_client=2000, partition_groups=2
  )
  fit = {}
  for group in (0, 1):
    x, y = train.client(group)
    targets = np.eye(10)[y]
    fit[group] = np.linalg.lstsq(np.c_[x, np.ones(len(x))], targets, rcond=None)[0]
  accuracy = np.zeros((2, 2))
  for model in (0, 1):
    for group in (0, 1):
      x, y = test.client(group + 2)  # Another client of the same group.
      guess = (np.c_[x, np.ones(len(x))] @ fit[model]).argmax(axis=1)
      accuracy[model, group] = (guess == y).mean()
  assert accuracy.diagonal().min() > 0.6
  assert max(accuracy[0, 1], accuracy[1, 0]) < 0.3


def test_alpha_and_beta_decide_how_much_clients_differ():
  spread = {}
  for beta in (0.0, 3.0):
    train, _ = data.load(
      'synthetic', num_clients=40, examples_per_client=50, synthetic_beta=beta
    )
    means = [train.client(i)[0].mean() for i in range(40)]
    spread[beta] = np.std(means)
  assert spread[3.0] > 5 * spread[0.0]


def fitted(split, group, offset=0.0):
  """Accuracy on a client of a linear model of group 0, least squares to its labels."""
  of_fit, y = split.client(0)
  ones = np.ones((len(y), 1))
  weights = np.linalg.lstsq(np.c_[of_fit, ones], np.eye(4)[y], rcond=None)[0]
  x, y = split.client(group)
  return (np.c_[x - offset, np.ones(len(x))] @ weights).argmax(axis=1), y


TABLE = {
  'num_clients': 6, 'partition_groups': 3, 'examples_per_client': 4000,
  'synthetic_features': 8,
}  # fmt: skip


def test_groups_of_a_table_have_permuted_labels():
  train, _ = data.load('synthetic_table', **TABLE)
  assert (train.example_shape, train.num_classes) == ((8,), 4)
  tables = []
  for group in range(3):
    for client in (group, group + 3):
      guess, y = fitted(train, client)
      table = [np.bincount(y[guess == label]).argmax() for label in range(4)]
      assert (np.array(table)[guess] == y).mean() > 0.7
    tables.append(tuple(table))
  assert tables[0] == (0, 1, 2, 3)
  assert len(set(tables)) == 3


def test_groups_of_a_table_have_other_offsets():
  train, _ = data.load(
    'synthetic_table', synthetic_difference='features', synthetic_distance=5.0, **TABLE
  )
  means = np.stack([train.client(i)[0].mean(axis=0) for i in range(6)])
  np.testing.assert_allclose(np.linalg.norm(means, axis=1), 5, rtol=0.03)
  np.testing.assert_allclose(means[:3], means[3:], atol=0.12)
  for group in (1, 2):
    guess, y = fitted(train, group, means[group] - means[0])
    assert (guess == y).mean() > 0.7
    guess, y = fitted(train, group)
    assert (guess == y).mean() < 0.6


def test_groups_of_a_table_have_other_models_and_clients_mix_them():
  shares = {}
  for mix in (0.0, 0.4):
    train, _ = data.load(
      'synthetic_table', synthetic_difference='models', synthetic_distance=3.0,
      synthetic_mix=mix, **TABLE,
    )  # fmt: skip
    shares[mix] = [np.mean(np.equal(*fitted(train, i))) for i in (1, 2, 3)]
  assert max(shares[0.0][:2]) < 0.5
  assert shares[0.0][2] > 0.7
  assert 0.5 < shares[0.4][2] < shares[0.0][2] - 0.1


def test_a_table_for_a_regression_has_planted_weights():
  train, _ = data.load(
    'synthetic_table', task='regression', synthetic_difference='models', **TABLE
  )
  weights = [np.linalg.lstsq(*train.client(i), rcond=None)[0] for i in range(6)]
  np.testing.assert_allclose(weights[:3], weights[3:], atol=1e-4)
  for a, b in itertools.combinations(weights[:3], 2):
    assert np.abs(a - b).max() > 0.2


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'task': 'regression'}, '`synthetic_difference=labels`'),
    ({'synthetic_classes': 2}, '2 classes'),
    ({'synthetic_features': 0}, '`synthetic_features=0`'),
    ({'synthetic_mix': 1.0}, '`synthetic_mix=1.0`'),
    ({'synthetic_difference': 'x'}, '^synthetic_difference: '),
    ({'synthetic_distance': -1.0}, '`synthetic_distance=-1.0`'),
    ({'num_clients': 2}, '2 clients'),
  ],
)
def test_tables_that_cannot_be_made_are_named(options, message):
  with pytest.raises(UserError, match=message):
    data.load('synthetic_table', **{**TABLE, **options})
