"""FedSoft against float64, and the groups that it finds."""

import functools

import jax
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.fed_soft import pull_to_all
from fesem_jax.core.types import Cohort
from fesem_jax.data import attacks
from tests.support import draws, helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  over_seeds,
  run,
  unflatten,
)

LAMBDA, FLOOR, EVERY = 0.7, 1e-4, 2


def shares_of_least_loss(data, i, centers):
  """[K] the share of client i's examples on which each center has the least loss."""
  losses = [reference.example_losses(c, *data.client(i)) for c in centers]
  best = np.argmin(losses, axis=0)
  return np.bincount(best, minlength=len(centers)) / len(best)


def trained(local, data, i, start, centers, pulls, key):
  """Client i's SGD on F_i(w) + lambda / 2 sum_k u_ik |w - c_k|^2: [P], and its loss."""
  w, losses, counts = reference.flat(start), [], []
  for x, y in helpers.batches(data, local.schedule, i, key):
    loss, gradient = reference.loss_and_gradient(unflatten(w, start), x, y)
    pull = sum(u * (w - reference.flat(c)) for u, c in zip(pulls, centers, strict=True))
    w = w - 0.1 * (reference.flat(gradient) + LAMBDA * pull)
    losses.append(loss)
    counts.append(len(y))
  return w, np.average(losses, weights=counts)


def test_fed_soft_matches_float64_reference():
  # Algorithm 1, where a cohort of four of the six clients takes part in each round.
  data, local = federation(), helpers.local(batch_size=3)
  algorithm = algorithms.build('fed_soft', local, num_clusters=2, soft_lambda=LAMBDA)
  state = initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  like = centers[0]
  own = [
    reference.flat(reference.from_params(state.client_params, i)) for i in range(6)
  ]
  importance, estimated = np.full((6, 2), 0.5), np.full(6, -EVERY)
  step = jax.jit(algorithm.step)
  cohorts = [[4, 1, 0, 5], [2, 1, 3, 5], [4, 0, 3, 2], [1, 2, 4, 5]]
  for r, ids in enumerate(map(np.array, cohorts)):
    key = jax.random.fold_in(jax.random.key(9), r)
    for i in ids:
      if r - estimated[i] >= EVERY:
        shares = shares_of_least_loss(data, i, centers)
        importance[i], estimated[i] = np.maximum(shares, FLOOR), r
    weights = importance[ids] * np.array(SIZES)[ids, None]
    losses, counts = [], []
    for i in ids:
      own[i], loss = trained(
        local, data, i, unflatten(own[i], like), centers, importance[i], key
      )
      losses.append(loss)
      counts.append(SIZES[i])
    means = [np.average([own[i] for i in ids], axis=0, weights=w) for w in weights.T]
    centers = [unflatten(mean, like) for mean in means]
    state, info = step(state, data, Cohort(ids.astype(np.int32), everyone=False), key)
    assert int(info.trained) == len(losses)
    np.testing.assert_array_equal(info.clients.ids, ids)
    assert_close(info.train_loss, np.average(losses, weights=counts), rtol=1e-3)
    assert_close(state.importance, importance)
    np.testing.assert_array_equal(state.estimated, estimated)
    for k, center in enumerate(centers):
      got = reference.flat(reference.from_params(state.centers, k))
      assert_close(got, reference.flat(center), rtol=1e-3)
    for i in range(6):
      got = reference.flat(reference.from_params(state.client_params, i))
      assert_close(got, own[i], rtol=1e-3)
  assert np.ptp(importance, axis=1).max() > 0.2


@functools.cache
def built():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('fed_soft', local, num_clusters=2)


@pytest.mark.slow
@over_seeds(3)
def test_the_greatest_weights_are_the_planted_groups(seed):
  groups = np.arange(20) % 2
  data = helpers.federation([60] * 20, seed=seed, groups=groups)
  state, infos = run(built(), data, rounds=30, seed=seed)
  found = built().deployed(state, data).clusters()
  assert adjusted_rand_score(groups, found) == 1.0
  assert {int(info.trained) for info in infos} == {20}


def test_many_pulls_are_one_to_their_weighted_mean():
  centers = {'w': np.array([[1.0, 2.0], [5.0, -2.0]], np.float32)}
  # The last client, such as padding, is pulled nowhere.
  pulls = np.array([[1, 3], [2, 0], [0.25, 0.25], [0, 0]], np.float32)
  anchor, factors = pull_to_all(centers, pulls, 0.5)
  np.testing.assert_allclose(factors, [1, 0.5, 0.125, 0])
  np.testing.assert_allclose(anchor['w'], [[4, -1], [1, 2], [3, 0], [0, 0]])
  assert pull_to_all(centers, pulls, 0) is None


def test_bad_clients_lie_about_the_models_that_they_send():
  honest = federation()
  algorithm = algorithms.build('fed_soft', helpers.local(hidden=()), num_clusters=2)
  state, step = initial(algorithm, honest), jax.jit(algorithm.step)
  everyone, key = helpers.everyone(honest), jax.random.key(3)
  want, _ = step(state, honest, everyone, key)
  bad = attacks.apply(honest, 'sign_flip', 0.5)
  found, _ = step(state, bad, everyone, key)
  assert np.abs(matrix(found.centers) - matrix(want.centers)).max() > 1e-3
  good = ~np.asarray(bad.attack.bad)
  own, wanted = matrix(found.client_params), matrix(want.client_params)
  assert_close(own[good], wanted[good], rtol=1e-6)


def test_who_drops_out_keeps_its_weights_and_its_model():
  data = federation()
  local = helpers.local(hidden=())._replace(dropout_rate=0.4)
  algorithm = algorithms.build('fed_soft', local, num_clusters=2)
  state, key = initial(algorithm, data), jax.random.key(3)
  dropped = draws.dropped(key, data, 0.4)
  assert 0 < dropped.sum() < 6
  after, info = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  np.testing.assert_array_equal(after.importance[dropped], 0.5)
  np.testing.assert_array_equal(after.estimated, np.where(dropped, -2, 0))
  assert (np.asarray(after.importance)[~dropped] != 0.5).all()
  moved = (matrix(after.client_params) != matrix(state.client_params)).any(axis=1)
  np.testing.assert_array_equal(moved, ~dropped)
  np.testing.assert_array_equal(info.clients.arrived, ~dropped)
