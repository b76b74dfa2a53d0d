"""FedDrift against float64: drift, new models, merging, and clusters that it finds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.server import concept_drift
from fesem_jax.server.agglomerative import Merging, merge_while
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.cluster_steps import fed_drift_step
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  over_seeds,
  reference_round,
  run,
  unflatten,
)

NONE = np.inf


@pytest.mark.parametrize(
  ('alone', 'delta', 'weighting'),
  [(True, 0.3, 'by_examples'), (False, 0.02, 'uniform')],
)
def test_matches_float64_reference(alone, delta, weighting):
  # Every second round begins with a time step, in which the labels change.
  first, local = federation(), helpers.local(epochs=3)
  second = federation_of_other_labels(first)
  algorithm = algorithms.build(
    'fed_drift', local, drift_delta=delta, check_every=2, start_alone=alone,
    weighting=weighting, max_clusters=7,
  )  # fmt: skip
  state, step = initial(algorithm, first), jax.jit(algorithm.step)
  centers = [reference.from_params(state.centers, k) for k in range(7)]
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  own = np.arange(6) if alone else np.zeros(6, int)

  def losses_of(data):
    return np.array(
      [
        [reference.loss_and_gradient(c, *data.client(i))[0] for c in centers]
        for i in range(6)
      ]
    )

  before, seen = losses_of(first)[:, 0], []
  np.testing.assert_allclose(state.client_losses, before, rtol=1e-5)
  last_used = np.where(np.isin(np.arange(7), own), 0, -1)
  for number in range(1, 7):
    data = first if number < 5 else second
    if number in (3, 5):
      own, before, started, clusters, shares = fed_drift_step(
        losses_of(data), own, before, last_used, weights, delta
      )
      old = [reference.flat(c) for c in centers]
      for cluster in clusters:
        share = [shares[k] for k in cluster]
        mean = np.average([old[k] for k in cluster], axis=0, weights=share)
        centers[min(cluster)] = unflatten(mean, centers[0])
        last_used[[k for k in cluster if k != min(cluster)]] = -1
      for k, source in started.items():
        centers[k] = unflatten(old[source], centers[0])
      last_used[own] = number // 2
      seen.append((len(started), max(map(len, clusters))))
    key = jax.random.fold_in(jax.random.key(9), number)
    state, info = step(state, data, helpers.everyone(data), key)
    np.testing.assert_array_equal(state.assignment, own)
    np.testing.assert_array_equal(state.last_used, last_used)
    in_use = last_used >= 0
    assert_close(state.client_losses, before, rtol=1e-3)
    trained = reference_round(local, data, [centers[k] for k in own], range(6), key)
    points = np.stack([reference.flat(w) for w in trained])
    new = reference.means(points, own, weights, [reference.flat(c) for c in centers])
    centers = [unflatten(c, centers[0]) for c in new]
    got = reference.vectors(state.centers)
    assert_close(got[in_use], new[in_use], rtol=1e-3)
    value = reference.objective(points, new, own, weights)
    assert_close(info.clusters.objective, value, rtol=1e-3)
  assert int(info.clusters.sizes.sum()) == 6
  assert max(started for started, _ in seen) > 0
  assert not alone or max(largest for _, largest in seen) > 1


def federation_of_other_labels(data):
  """The same examples, where labels of the first three clients moved by one."""
  moved = np.asarray(data.y).copy()
  last = int(np.asarray(data.offsets)[3])
  moved[:last] = (moved[:last] + 1) % helpers.CLASSES
  return dataclasses.replace(data, y=moved)


@functools.cache
def planted():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('fed_drift', local, check_every=3)


@over_seeds(3)
def test_recovers_planted_clusters_without_their_number(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  state, infos = run(planted(), data, rounds=10, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0
  assert int((np.asarray(state.last_used) >= 0).sum()) == 4
  assert int(infos[-1].clusters.moved) == 0


def test_one_model_of_one_step_is_fed_avg():
  data, local = federation(), helpers.local()
  drift = algorithms.build('fed_drift', local, max_clusters=1, start_alone=False)
  average, start = algorithms.build('fed_avg', local), initial(drift, data)
  begin = initial(average, data)._replace(params=start.centers)
  want, _ = run(average._replace(init=lambda key, data: begin), data)
  state, _ = run(drift, data)
  assert_close(matrix(state.centers), matrix(want.params), rtol=1e-6, atol=1e-7)


def decided(losses, own, before, last_used, delta=0.5, sent=None):
  losses = np.array(losses, np.float32)
  count = len(losses)
  clients = concept_drift.Clients(
    jnp.asarray(losses),
    jnp.array(own, jnp.int32),
    jnp.array(before, jnp.float32),
    jnp.ones(count, bool) if sent is None else jnp.array(sent),
    jnp.ones(count),
    jnp.arange(count),
  )
  found = jax.jit(concept_drift.decide)(
    clients, jnp.array(last_used, jnp.int32), jnp.int32(9), delta
  )
  return jax.tree.map(np.asarray, found)


def test_drift_is_a_rise_of_the_least_loss_by_more_than_delta():
  # Client 0 drifts; 1 rose by delta alone; 2 finds another model that fits.
  found = decided(
    [[1.6, 2.0, NONE], [1.5, 2.0, NONE], [2.0, 0.9, NONE]],
    [0, 0, 0], [1.0, 1.0, 1.0], [8, 8, -1],
  )  # fmt: skip
  assert found.own.tolist() == [2, 0, 1]
  assert found.new.tolist() == [2, 3, 3]
  assert found.best.tolist() == [0, 0, 1]
  np.testing.assert_allclose(found.loss, [1.6, 1.5, 0.9])
  assert found.last_used.tolist() == [9, 9, 9]


def test_new_models_take_the_place_of_unused_then_least_recently_used_ones():
  losses = [[3.0, 9.0, 9.0, NONE]] * 3 + [[1.0, 9.0, 9.0, NONE]]
  found = decided(losses, [0] * 4, [1.0] * 4, [8, 7, 6, -1])
  assert found.own.tolist() == [3, 2, 1, 0]
  # A fourth would find none: it keeps the model of least loss.
  found = decided(losses[:3] * 2, [0] * 6, [1.0] * 6, [8, 7, 6, -1])
  assert found.own.tolist() == [3, 2, 1, 0, 0, 0]


def test_who_sends_no_losses_keeps_its_model():
  losses = [[5.0, 0.1, NONE], [0.4, 9.0, NONE]]
  found = decided(losses, [0, 0], [1.0, 1.0], [8, 8, -1], sent=[False, True])
  assert found.own.tolist() == [0, 0]
  np.testing.assert_allclose(found.loss, [1.0, 0.4])


def test_models_merge_by_complete_linkage_and_by_weight():
  # 0 and 1 are closest; 2 is close to 1 but not to 0.
  losses = [[1.0, 1.1, 1.9], [1.1, 1.0, 1.4], [1.9, 1.4, 1.0]]
  found = decided(losses, [0, 1, 2], [1.0] * 3, [8, 8, 8])
  assert found.into.tolist() == [0, 0, 2]
  assert found.own.tolist() == [0, 0, 2]
  assert found.last_used.tolist() == [9, -1, 9]
  assert decided(losses, [0, 1, 2], [1.0] * 3, [8] * 3, 1.0).into.tolist() == [0] * 3
  assert decided(losses, [0, 1, 2], [1.0] * 3, [8] * 3, 0.1).into.tolist() == [0, 1, 2]


@pytest.mark.parametrize('seed', range(4))
def test_merging_is_that_of_scipy(seed):
  points = np.random.default_rng(seed).normal(size=(9, 2))
  apart = np.linalg.norm(points[:, None] - points, axis=-1)
  want = hierarchy.fcluster(
    hierarchy.linkage(squareform(apart, checks=False), 'complete'), 1.2, 'distance'
  )
  np.fill_diagonal(apart, np.inf)
  apart = jnp.asarray(apart, jnp.float32)
  near = merge_while(Merging.of(apart), lambda least, merges: least < 1.2, 'complete')
  found = near.first
  assert adjusted_rand_score(want, found) == 1.0
  assert len(set(want)) == len(set(found.tolist())) < 9


def test_a_model_that_fits_nobody_any_more_is_kept_for_later():
  # All clients moved on to model 1; on their examples nothing is known of model 0.
  found = decided([[4.0, 0.5], [4.0, 0.5]], [0, 0], [0.5, 0.5], [8, 8])
  assert found.into.tolist() == [0, 1]
  assert found.last_used.tolist() == [8, 9]


def test_who_has_no_losses_takes_no_part_in_the_begin_of_a_time_step():
  # Models 0 to 2 say their class, model 3 none. All clients but one were in model 1.
  y = np.array([0] * 4 + [2] + [1] * 4 + [0] * 2)
  x, sizes = np.zeros((11, *helpers.SHAPE), np.float32), [4, 1, 0, 4, 2]
  data = FederatedData.from_arrays(x, y, sizes, num_classes=3)
  x[9] = np.nan  # Of client 4.
  data = dataclasses.replace(data, x=x)
  algorithm = algorithms.build(
    'fed_drift', helpers.local(hidden=()), max_clusters=5, check_every=1,
    drift_delta=0.01, weighting='uniform',
  )  # fmt: skip
  logits = {
    'kernel': jnp.zeros((5, *helpers.SHAPE, 3)),
    'bias': 5.0 * jnp.eye(5, 3),
  }
  state = initial(algorithm, data)._replace(
    centers={'logits': logits},
    assignment=jnp.array([1, 1, 3, 1, 1]),
    client_losses=jnp.full(5, 10.0),
    last_used=jnp.array([0, 0, 0, 0, -1]),
    rounds=jnp.int32(1),
  )
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(0)
  )
  # One example is enough; without any, or a loss, a client stays where it was.
  assert after.assignment.tolist() == [0, 2, 3, 1, 1]
  fits = np.log(1 + 2 * np.exp(-5))
  assert_close(after.client_losses, [fits, fits, 10, fits, 10])
  assert after.last_used.tolist() == [1, 1, 1, 0, -1]


def test_bad_options_and_runs_are_refused():
  for options, message in (
    ({'max_clusters': -1}, '`max_clusters=-1` must be at least 0'),
    ({'drift_delta': -1.0}, '`drift_delta=-1.0` must be at least 0'),
    ({'check_every': 0}, '`check_every=0` must be at least 1'),
    ({'weighting': 'size'}, '`weighting=size` is unknown'),
  ):
    with pytest.raises(UserError, match=message):
      algorithms.build('fed_drift', helpers.local(), **options)
  data = federation()
  few = algorithms.build('fed_drift', helpers.local(), max_clusters=5)
  with pytest.raises(UserError, match='`max_clusters=5` is fewer than the 6 clients'):
    few.init(jax.random.key(0), data)
  algorithm = algorithms.build('fed_drift', helpers.local())
  cohort = Cohort(np.array([0, 1], np.int32), everyone=False)
  state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
  with pytest.raises(UserError, match='`clients_per_round` must be 0 for fed_drift'):
    algorithm.step(state, data, cohort, jax.random.key(0))
