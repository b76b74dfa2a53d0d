"""Generated federations have the clusters that are planted in them."""

import numpy as np
import pytest

from fesem_jax.data import sources
from tests.support.sources import parts


@pytest.mark.parametrize(('dataset', 'groups'), [
  ('synthetic', None), ('synthetic_linear(groups=3)', 3),
  ('synthetic_mixture(groups=3)', 3),
])  # fmt: skip
def test_synthetic_families_are_seeded_and_planted(dataset, groups):
  def read(seed):
    return sources.read(dataset, seed=seed, num_clients=12, examples_per_client=40)

  pool = read(0)
  assert np.bincount(pool.client).tolist() == [50] * 12
  np.testing.assert_array_equal(pool.x, read(0).x)
  assert not np.array_equal(pool.x, read(1).x)
  planted = None if groups is None else (pool.client % groups).tolist()
  assert (None if pool.cluster is None else pool.cluster.tolist()) == planted


def test_synthetic_labels_follow_the_planted_models():
  # One least-squares model for each group explains its labels, not the others'.
  pool = sources.read(
    'synthetic_mixture(groups=2)', num_clients=4, examples_per_client=2000
  )
  clients = [(np.c_[x, np.ones(len(x))], y) for x, y in parts(pool).values()]
  accuracy = np.zeros((2, 2))
  for model in (0, 1):
    x, y = clients[model]
    weights = np.linalg.lstsq(x, np.eye(10)[y], rcond=None)[0]
    for group in (0, 1):
      x, y = clients[group + 2]  # Another client of the same group.
      accuracy[model, group] = ((x @ weights).argmax(axis=1) == y).mean()
  assert accuracy.diagonal().min() > 0.6
  assert max(accuracy[0, 1], accuracy[1, 0]) < 0.3


def test_linear_targets_are_those_of_the_planted_coins():
  options = {'num_clients': 2, 'examples_per_client': 1200, 'task': 'regression'}
  pool = sources.read('synthetic_linear(groups=1)', **options)
  (x, y), (other_x, other_y) = parts(pool).values()
  x, other_x = x.astype(float), other_x.astype(float)
  model = np.linalg.solve(x.T @ x, x.T @ y)  # As lstsq, in a twentieth of its time.
  np.testing.assert_allclose(model, np.round(model), atol=1e-3)
  assert set(np.round(model).ravel()) == {0, 1}
  np.testing.assert_allclose(other_x @ model, other_y, atol=0.01)


def test_alpha_and_beta_decide_how_much_clients_differ():
  spread = {}
  for beta in (0.0, 3.0):
    pool = sources.read(
      f'synthetic(beta={beta})', num_clients=40, examples_per_client=50
    )
    spread[beta] = np.std([x.mean() for x, _ in parts(pool).values()])
  assert spread[3.0] > 5 * spread[0.0]
