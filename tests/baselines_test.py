"""Where baselines are what their labels say, and say where they are not."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging
from scipy import stats

from fesem_jax import algorithms, em, sharding, streams, tree
from fesem_jax.algorithms.fed_cluster import split_clusters
from fesem_jax.errors import UserError
from tests import helpers
from tests.algorithms_test import SPLIT, federation, initial, run, updates


@pytest.mark.parametrize('name', ['fed_sgd', 'hypo_cluster'])
@pytest.mark.parametrize(
  'optimizer', [optax.adam(0.1), optax.adam(1e-9), optax.adamw(0.1)]
)
def test_a_gradient_step_needs_an_optimizer_that_follows_the_gradient(name, optimizer):
  options = {'variant': 'gradient'} if name == 'hypo_cluster' else {}
  local = helpers.local(optimizer=optimizer)
  with pytest.raises(UserError, match='needs --optimizer=sgd'):
    algorithms.build(name, local, **options)
  for follows in (optax.sgd(0.1), optax.sgd(0.1, momentum=0.9)):
    algorithms.build(name, helpers.local(optimizer=follows), **options)


def test_fed_clusters_mean_update_weighs_clients_as_its_centers_do():
  # Two clients of 10 to 1 examples at a stationary point of their weighted mean:
  # 10 u_1 + u_2 = 0, so the cluster has converged while its clients have not.
  u = np.array([[1.0], [1.0], [-10.0], [-10.0]])
  sizes = np.array([10.0, 10.0, 1.0, 1.0])
  options = SPLIT | {'eps1': 0.1, 'min_size': 1}
  split = lambda weights: split_clusters(
    u @ u.T, weights, np.zeros(4, np.int32), 1, **options
  )
  assignment, count = split(sizes)
  assert count == 2
  np.testing.assert_array_equal(assignment, [0, 0, 1, 1])
  assert split(np.ones(4))[1] == 1  # Alike, their mean is -4.5.


@pytest.mark.parametrize(('eps1', 'scale', 'count'), [
  (0.5, 'relative', 2),  # The mean is 0.3, 0.2 of the largest update.
  (0.1, 'relative', 1),
  (0.4, 'absolute', 2),
  (0.2, 'absolute', 1),
])  # fmt: skip
def test_fed_clusters_eps1_is_relative_or_absolute(eps1, scale, count):
  u = np.array([[1.5, 0.0], [1.5, 0.0], [-0.9, 0.0], [-0.9, 0.0]])
  options = SPLIT | {'eps1': eps1, 'eps1_scale': scale, 'min_size': 1}
  found = split_clusters(u @ u.T, np.ones(4), np.zeros(4, np.int32), 1, **options)
  assert found[1] == count


def test_fed_cluster_says_once_that_it_splits_no_further(caplog):
  logging.use_absl_handler()
  data = helpers.federation([30] * 9, groups=np.arange(9) % 3)
  local = helpers.local(batch_size=10, epochs=2)
  algorithm = algorithms.build(
      'fed_cluster', local, max_clusters=2, eps1=1.1, eps2=0.0, gamma=0.0, min_size=2,
      min_rounds=0, check_every=1,
  )  # fmt: skip
  with caplog.at_level('WARNING'):
    _, infos = run(algorithm, data, rounds=4)
  assert int((infos[-1].clusters.sizes > 0).sum()) == 2
  said = [r.getMessage() for r in caplog.records if 'max_clusters=2' in r.getMessage()]
  assert len(said) == 1


def test_fed_clusters_state_holds_no_matrix_of_clients():
  data = helpers.federation([4] * 50)
  algorithm = algorithms.build('fed_cluster', helpers.local(), max_clusters=2)
  state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
  model = sum(x.size for x in jax.tree.leaves(state.centers))
  assert sum(x.size for x in jax.tree.leaves(state)) == model + 50 + 2


@pytest.mark.parametrize('seeding', ['random', 'plusplus'])
@pytest.mark.parametrize('sound', [1, 2])
def test_kmeans_with_fewer_sound_clients_than_centers(seeding, sound):
  points = 5 + np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
  exists = jnp.arange(5) < sound
  run = lambda: em.kmeans(
    jax.random.key(0), {'w': jnp.asarray(points)}, exists, 3, jnp.arange(5),
    restarts=4, seeding=seeding,
  )  # fmt: skip
  centers = np.asarray(jax.jit(run)().centers['w'])
  # Every center is a sound client, or the mean of some; none is at the origin.
  for center in centers:
    apart = np.abs(points[:sound] - center).max(axis=1).min()
    mean = np.abs(points[:sound].mean(axis=0) - center).max()
    assert min(apart, mean) < 1e-5


def test_robust_trains_until_the_loss_settles():
  data, local = federation(), helpers.local(rate=0.3)
  # With a center for each client, centers are the clients' models.
  options = {'num_clusters': 6, 'init_epochs': 2, 'trim': 0.0}
  losses = {}
  for tolerance in (0.0, 0.05, 1e-6):
    algorithm = algorithms.build('robust', local, init_tolerance=tolerance, **options)
    state = initial(algorithm, data)
    sizes = np.diff(data.offsets)
    own = [tree.unstack(state.centers, int(k)) for k in state.assignment]
    loss = [
      optax.softmax_cross_entropy_with_integer_labels(
        local.model.apply(own[i], data.client(i)[0]), data.client(i)[1]
      ).mean()
      for i in range(len(sizes))
    ]
    losses[tolerance] = np.average(loss, weights=sizes)
  # A lower tolerance trains longer, 0 only once.
  assert losses[1e-6] < losses[0.05] < losses[0.0]


def test_notes_say_where_a_run_departs_from_the_publication():
  of = lambda name, clients=80, **chosen: ' '.join(
    algorithms.notes(name, algorithms.options(name) | chosen, clients)
  )
  assert 'best of 20 draws' in of('hypo_cluster')
  assert of('hypo_cluster', init_restarts=1, init_rounds=0) == ''
  assert 'trim each coordinate at 0.05' in of('robust')
  assert 'eps1=0.4 (relative)' in of('fed_cluster')
  assert of('fesem') == of('fed_avg') == ''
  assert 'compare 256 of 1200 clients' in of('fesem', 1200)
  assert 'refined on 1200' in of('fesem', 1200)
  assert 'refined on 4096' in of('fesem', 9000, client_state='streamed')
  assert 'compare 100 of 9000' in of('fesem', 9000, init_clients=100)


def test_streams_do_not_coincide():
  key = jax.random.key(5)
  data = lambda k: tuple(np.asarray(jax.random.key_data(k)).tolist())
  of_clients = {data(jax.random.fold_in(key, i)) for i in range(100)}
  named = [
      streams.DROPOUT, streams.STRAGGLES, streams.STRAGGLER_EPOCHS,
      streams.FIRST_COHORT, streams.SAMPLE, streams.DRAWS, streams.MODEL,
      streams.LOCAL, streams.CLUSTERING, streams.SIGNS, streams.REPEATED,
  ]  # fmt: skip
  others = {data(streams.fold(key, s)) for s in named}
  assert len(others) == len(named)
  assert not of_clients & others
  on_host = [
      streams.PARTITION, streams.SPLIT, streams.SELECT, streams.RELABEL,
      streams.HOLD_OUT, streams.GENERATE, streams.UNSEEN,
  ]  # fmt: skip
  first = lambda *words: streams.host_rng(3, *words).random()
  draws = [first(s) for s in on_host]
  draws += [first(streams.COHORT, r) for r in range(1, 50)]
  assert len(set(draws)) == len(draws)


def test_a_second_split_of_the_same_updates_changes_nothing():
  groups = np.array([0, 1] * 4)
  once = split_clusters(updates(groups), np.ones(8), np.zeros(8, int), 1, **SPLIT)
  twice = split_clusters(updates(groups), np.ones(8), *once, **SPLIT)
  np.testing.assert_array_equal(once[0], twice[0])
  assert once[1] == twice[1] == 2


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('numbers', [1, 60, 2**20])
def test_trimmed_means_come_out_alike_in_blocks_of_any_size(
  numbers, devices, monkeypatch
):
  module = sys.modules['fesem_jax.algorithms.robust']
  monkeypatch.setattr(module, '_NUMBERS_AT_ONCE', numbers)
  rng = np.random.default_rng(0)
  points = rng.normal(size=(24, 4, 7)).astype(np.float32)
  cluster, counts = rng.integers(0, 3, 24), rng.random(24) < 0.8
  origins = {'w': jnp.asarray(rng.normal(size=(4, 4, 7)), jnp.float32)}
  got = jax.jit(module.trimmed_mean, static_argnums=(3, 5))(
    {'w': jnp.asarray(points)}, jnp.asarray(cluster), jnp.asarray(counts), 0.2,
    origins, sharding.client_mesh(devices),
  )['w']  # fmt: skip
  for k in range(3):
    mine = points[(cluster == k) & counts].astype(np.float64)
    np.testing.assert_allclose(got[k], stats.trim_mean(mine, 0.2), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(got[3], origins['w'][3])
