"""FedGroup against float64, and the groups that it finds."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.fed_group import FedGroupState
from fesem_jax.core import prng_streams, sampling, tree
from fesem_jax.server.update_directions import nearest_direction, toward_others
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
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

KEY = jax.random.key(0)


def first_updates(local, data, start, ids, key=KEY):
  """[S, P] updates of one epoch from the first model."""
  own_key = prng_streams.fold(key, prng_streams.LOCAL)
  models = reference_round(local, data, [start] * len(ids), ids, own_key)
  return np.stack([reference.flat(w) for w in models]) - reference.flat(start)


def grouped(updates):
  """[S] two groups by the cosines with the first two left singular vectors."""
  left = np.linalg.svd(updates.T, full_matrices=False)[0][:, :2]
  cosine = updates @ left / np.linalg.norm(updates, axis=1)[:, None]
  own = reference.best_kmeans(cosine, 2)[0]
  return own if own[0] == 0 else 1 - own  # Numbered by their first clients.


def mixed(centers, rate):
  """[K, P] of all groups: each with the others of length `rate`, over the weights."""
  out = []
  for k in range(len(centers)):
    weights = rate / np.linalg.norm(centers, axis=1)
    weights[k] = 1.0
    out.append(weights @ centers / weights.sum())
  return np.array(out)


def test_matches_float64_reference():
  data, local = federation(), helpers.local(epochs=1)
  options = {'inter_group_rate': 0.4, 'prox_mu': 0.6}
  algorithm = algorithms.build('fed_group', local, num_clusters=2, **options)
  state, step = initial(algorithm, data, KEY), jax.jit(algorithm.step)
  start = reference.from_params(state.start, 0)
  updates = first_updates(local, data, start, range(6))
  own = grouped(updates)
  np.testing.assert_array_equal(state.assignment, own)
  directions = np.stack([updates[own == k].mean(axis=0) for k in (0, 1)])
  assert_close(reference.vectors(state.directions), directions, rtol=1e-3)
  centers = [unflatten(reference.flat(start) + d, start) for d in directions]
  for number in (1, 2):
    key = jax.random.fold_in(jax.random.key(9), number)
    state, info = step(state, data, helpers.everyone(data), key)
    starts, penalties = [centers[k] for k in own], [0.3] * 6
    models = reference_round(local, data, starts, range(6), key, penalties)
    points = np.stack([reference.flat(w) for w in models])
    old = np.stack([reference.flat(c) for c in centers])
    means = reference.means(points, own, np.array(SIZES), old)
    value = reference.objective(points, means, own, SIZES)  # Before groups are mixed.
    assert_close(info.clusters.objective, value, rtol=1e-3)
    new = mixed(means, 0.4)
    centers = [unflatten(c, start) for c in new]
    assert_close(reference.vectors(state.centers), new, rtol=1e-3)
    np.testing.assert_array_equal(info.clusters.sizes, np.bincount(own))


def test_others_join_the_group_whose_direction_is_nearest():
  data, local = federation(), helpers.local(epochs=1)
  algorithm = algorithms.build('fed_group', local, num_clusters=2, init_clients=3)
  state = initial(algorithm, data, KEY)
  some = sampling.all_or_sample(KEY, data, 3, local.mesh).ids.tolist()
  assert len(set(some)) == 3 < 6
  start = reference.from_params(state.start, 0)
  updates = first_updates(local, data, start, range(6))
  own = grouped(updates[sorted(some)])
  directions = [updates[sorted(some)][own == k].mean(axis=0) for k in (0, 1)]
  assert_close(reference.vectors(state.directions), directions, rtol=1e-3)
  lengths = np.linalg.norm(directions, axis=1)
  wanted = (updates @ np.transpose(directions) / lengths).argmax(axis=1)
  wanted[sorted(some)] = own
  np.testing.assert_array_equal(state.assignment, wanted)


@functools.cache
def planted():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('fed_group', local, num_clusters=4, init_clients=12)


@over_seeds(2)
def test_recovers_planted_groups(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  state, infos = run(planted(), data, rounds=3, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0
  assert infos[-1].train_loss < infos[0].train_loss
  # Clients that were not in the run join the same groups, wherever they are.
  order = np.random.default_rng(seed).permutation(16)
  used = jax.jit(planted().of_unseen)(state, data.reorder(order, num_clients=16))
  np.testing.assert_array_equal(used.choice, np.asarray(state.assignment)[order])


def test_of_one_group_is_fed_avg():
  data, local = federation(), helpers.local()
  method = algorithms.build('fed_group', local, num_clusters=1, inter_group_rate=0.5)
  average, start = algorithms.build('fed_avg', local), initial(method, data)
  begin = initial(average, data)._replace(params=start.centers)
  want, _ = run(average._replace(init=lambda key, data: begin), data)
  state, _ = run(method, data)
  assert_close(matrix(state.centers), matrix(want.params), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(('chosen', 'count'), [(0, 40), (3, 3)])
def test_the_first_clustering_sees_twenty_clients_for_each_group(
  chosen, count, monkeypatch
):
  seen, data = [], helpers.federation([2] * 50)

  def sample(key, data, number, mesh):
    seen.append(number)
    return helpers.everyone(data)

  monkeypatch.setattr(
    sys.modules['fesem_jax.algorithms.fed_group'], 'all_or_sample', sample
  )
  local = helpers.local(hidden=())
  method = algorithms.build('fed_group', local, num_clusters=2, init_clients=chosen)
  jax.eval_shape(method.init, KEY, data)
  assert seen == [count]


def along(local, data, client, start):
  """[2, ...] the gradient of a client's loss at a model [1, ...], and against it."""
  x, y = data.client(client)
  model = tree.unstack(start, 0)
  found = jax.grad(lambda p: local.model.loss(local.model.apply(p, x), y).mean())(model)
  return jax.tree.map(lambda g: jnp.stack([g, -g]), found)


def test_clients_from_elsewhere_join_by_one_example_and_without_any_the_first_group():
  data, local = helpers.federation([1, 0, 3]), helpers.local(hidden=())
  method = algorithms.build('fed_group', local, num_clusters=2)
  start = tree.expand(local.model.init(KEY))
  own, directions = jnp.zeros(3, jnp.int32), along(local, data, 0, start)
  state = FedGroupState(tree.repeat(tree.unstack(start, 0), 2), own, start, directions)
  used = jax.jit(method.of_unseen)(state, data)
  assert used.choice[:2].tolist() == [1, 0]  # It trains against its gradient.


def test_groups_of_one_client_attract_and_those_of_none_do_not(monkeypatch):
  def where_they_exist(centers, exist, rate):
    ones = jax.tree.map(jnp.ones_like, centers)
    return tree.where(exist, ones, tree.zeros_like(centers))

  module = sys.modules['fesem_jax.algorithms.fed_group']
  monkeypatch.setattr(module, 'toward_others', where_they_exist)
  data, local = helpers.federation([3, 3, 3, 0]), helpers.local(hidden=())
  method = algorithms.build('fed_group', local, num_clusters=4, inter_group_rate=0.5)
  start = tree.expand(local.model.init(KEY))
  centers = tree.repeat(tree.unstack(start, 0), 4)
  state = FedGroupState(centers, jnp.array([0, 0, 1, 2]), start, centers)
  after, _ = jax.jit(method.step)(state, data, helpers.everyone(data), KEY)
  assert after.centers['logits']['bias'][:, 0].tolist() == [1, 1, 0, 0]


def test_groups_without_clients_attract_nobody():
  directions = {'w': jnp.array([[-1.0, 0.0], [0.0, 0.0], [0.0, -2.0]])}
  updates = {'w': jnp.array([[3.0, 1.0], [-1.0, 9.0], [0.0, 0.0]])}
  np.testing.assert_array_equal(nearest_direction(updates, directions), [2, 0, 0])
  centers = {'w': jnp.array([[3.0, 4.0], [1.0, 1.0], [0.0, 2.0]])}
  found = toward_others(centers, jnp.array([True, False, True]), 0.5)['w']
  np.testing.assert_allclose(found[0], [3 / 1.25, 4.5 / 1.25], rtol=1e-6)
  np.testing.assert_allclose(found[1], [1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'num_clusters': 0}, '`num_clusters=0` must be at least 1'),
    ({'init_epochs': 0}, '`init_epochs=0` must be at least 1'),
    ({'init_clients': -1}, '`init_clients=-1` must be at least 0'),
    ({'inter_group_rate': -0.1}, '`inter_group_rate=-0.1` must be at least 0'),
    ({'prox_mu': -0.1}, '`prox_mu=-0.1` must be at least 0'),
    ({'weighting': 'size'}, '`weighting=size` is unknown'),
  ],
)
def test_bad_options_are_refused(options, message):
  with pytest.raises(UserError, match=message):
    algorithms.build('fed_group', helpers.local(), **options)


def test_more_groups_than_clients_are_refused():
  many = algorithms.build('fed_group', helpers.local(), num_clusters=7)
  with pytest.raises(UserError, match='`num_clusters=7` is more than the 6 clients'):
    many.init(KEY, federation())
