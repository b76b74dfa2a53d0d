"""Generated federations have the clusters that are planted in them."""

import numpy as np

from fesem_jax import data


def test_synthetic_families_are_seeded_and_planted():
  for name in ('synthetic', 'synthetic_linear', 'synthetic_mixture'):

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
