"""Options of FeSEM beyond the paper: soft assignment, ages, late joins, starts."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.wrapped import inner, replaced
from fesem_jax.algorithms.wrappers import (
  with_shuffled_start,
)
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.types import Cohort
from fesem_jax.data import corruption
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
  unflatten,
)

KEY = jax.random.key(5)


def built(**options):
  local = helpers.local(epochs=2)
  return algorithms.build('fesem', local, num_clusters=2, **options), local


def test_soft_assignment_matches_float64():
  temperature = 0.02
  data, (algorithm, local) = federation(), built(temperature=temperature)
  state = initial(algorithm, data)
  centers = reference.vectors(state.centers)
  like = reference.from_params(state.centers, 0)
  starts = [unflatten(centers[k], like) for k in np.asarray(state.assignment)]
  trained = reference_round(local, data, starts, range(6), KEY, np.full(6, 0.01))
  points = np.stack([reference.flat(w) for w in trained])
  shares = reference.responsibilities(points, centers, temperature)
  new = (shares.T @ points) / shares.sum(axis=0)[:, None]
  value = (shares * np.square(points[:, None] - new).sum(axis=-1)).sum() / 6
  after, info = jax.jit(algorithm.step)(state, data, helpers.everyone(data), KEY)
  assert_close(reference.vectors(after.centers), new, rtol=1e-3)
  nearest = reference.nearest(points, centers)
  np.testing.assert_array_equal(after.assignment, nearest)
  assert_close(info.clusters.objective, value, rtol=1e-3)


def test_assignments_older_than_max_age_are_made_anew():
  data = federation()
  # Models stay where they start.
  local = helpers.local(batch_size=0, rate=1e-6, hidden=())
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, max_age=2, client_state='streamed'
  )
  state = initial(algorithm, data)
  centers = helpers.first_models(local, 2, 1)
  best = best_of(centers, data)
  state = replaced(state, centers=centers, assignment=jnp.asarray(1 - best, jnp.int32))
  step = jax.jit(algorithm.step)

  def right(state):
    return np.asarray(inner(state).assignment) == best

  # Clients 0 to 3 each time, 5 after two rounds and 4 after three.
  for number, more in ((1, [6, 6]), (2, [6, 5]), (3, [4, 5])):
    cohort = Cohort(np.array([0, 1, 2, 3, *more]), everyone=False)
    state, _ = step(state, data, cohort, jax.random.key(number))
    assert right(state).tolist() == [False] * 4 + [number == 3, False]
  assert state.seen.tolist() == [3] * 6


def best_of(centers, data):
  """[M] the center of least training loss, by float64."""
  models = [reference.from_params(centers, k) for k in (0, 1)]
  losses = reference.losses(models, data, range(6))
  return np.argmin(losses, axis=1)


def test_clients_that_join_late_choose_by_loss():
  data = federation()
  local = helpers.local(batch_size=0, rate=1e-6, hidden=())
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, late_joins=True, init_clients=3
  )
  state = initial(algorithm, data)
  first = np.flatnonzero(np.asarray(state.joined))
  late = np.flatnonzero(~np.asarray(state.joined))
  assert len(first) == len(late) == 3
  # Only the first ones have trained.
  points = matrix(inner(state).client_params)
  moved = (points != points[late[0]]).any(axis=1)
  np.testing.assert_array_equal(np.flatnonzero(moved), first)
  centers = helpers.first_models(local, 2, 1)
  best = best_of(centers, data)
  wrong = replaced(state, centers=centers, assignment=jnp.asarray(1 - best, jnp.int32))
  used = np.asarray(algorithm.deployed(wrong, data).choice)
  np.testing.assert_array_equal(used[late], best[late])
  np.testing.assert_array_equal(used[first], 1 - best[first])
  after, _ = jax.jit(algorithm.step)(wrong, data, helpers.everyone(data), KEY)
  assignment = np.asarray(inner(after).assignment)
  np.testing.assert_array_equal(assignment[late], best[late])
  np.testing.assert_array_equal(assignment[first], 1 - best[first])
  assert np.asarray(after.joined).all()


@pytest.mark.nightly
def test_a_shuffled_start_moves_clients_and_their_centers():
  data = helpers.federation(np.full(40, 4), groups=np.arange(40) % 2)
  data, states = data.reorder(np.arange(40), num_clients=44), {}
  for share in (0.0, 0.5, 1.0):
    algorithm, _ = built()
    states[share] = initial(with_shuffled_start(algorithm, share), data)
  right = np.asarray(states[0.0].assignment)[:40]
  for share, state in states.items():
    own = np.asarray(state.assignment)[:40]
    moved = (own != right).mean()
    assert abs(moved - share / 2) < 0.2  # Half of them go where they were.
    want = reference.means(
      matrix(state.client_params)[:40], own, np.ones(40),
      np.zeros((2, 1)) + matrix(state.centers),
    )  # fmt: skip
    assert_close(matrix(state.centers), want, rtol=1e-3)
  assert (np.asarray(states[1.0].assignment) != states[0.5].assignment).any()


def test_random_models_are_each_clients_own():
  data, (algorithm, local) = federation(), built(init_models='random')
  state = initial(algorithm, data)
  key, points = jax.random.key(0), []
  for i in range(6):
    own = jax.random.fold_in(prng_streams.fold(key, prng_streams.MODEL), i)
    start = reference.from_params(tree.expand(local.model.init(own)), 0)
    once = local._replace(schedule=local.schedule._replace(epochs=1))
    train_key = prng_streams.fold(key, prng_streams.LOCAL)
    points.append(reference.flat(*reference_round(once, data, [start], [i], train_key)))
  assert_close(reference.vectors(state.client_params), points, rtol=1e-3)


def test_bad_clients_lie_about_random_models_too():
  data, (algorithm, _) = federation(), built(init_models='random')
  honest = matrix(initial(algorithm, data).client_params)
  bad = corruption.corrupted(data, 'sign_flip', 0.5)
  sent = matrix(initial(algorithm, bad).client_params)
  lied = (honest != sent).any(axis=1)
  np.testing.assert_array_equal(lied, bad.corruption.bad)


@pytest.mark.nightly
def test_a_sampled_start_matches_units_before_models_are_aggregated():
  data = helpers.federation([6] * 12)
  local = helpers.local(rate=1e-3)
  centers = []
  for aggregation in ('mean', 'trimmed_mean'):
    algorithm = algorithms.build(
      'fesem_ma', local, num_clusters=1, init_models='random', init_clients=6,
      aggregation=aggregation,
    )  # fmt: skip
    centers.append(matrix(initial(algorithm, data).centers))
  # Without matching, 1.75; the trimmed mean itself differs by 0.01.
  assert np.square(centers[0] - centers[1]).sum() < 0.1


def test_checks_get_the_options_of_the_first_clustering(monkeypatch):
  seen, module = [], sys.modules['fesem_jax.algorithms.flat_options']

  def wrap(method, every, clustering):
    seen.append((every, clustering))
    return method

  monkeypatch.setattr(module, 'with_reclustering', wrap)
  built(
    recluster_every=3, init_restarts=7, init_seeding='plusplus', cluster_on='logits',
    weighting='by_examples',
  )  # fmt: skip
  algorithms.build(
    'hypo_cluster', helpers.local(), recluster_every=2, weighting='by_examples'
  )
  (every, fesem), (_, hypo) = seen
  assert (every, fesem.restarts, fesem.seeding) == (3, 7, 'plusplus')
  assert fesem.comparison.partial
  assert not hypo.comparison.partial
  assert fesem.weighting == hypo.weighting == 'by_examples'
