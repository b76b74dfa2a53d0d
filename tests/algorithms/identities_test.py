"""Methods that reduce to each other for some options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import tree
from fesem_jax.server import comparison
from tests.support import helpers
from tests.support.methods import SIZES, assert_close, federation, initial, matrix, run


@functools.cache
def average(weighting):
  """The model [1, P] of FedAvg after three rounds."""
  algorithm = algorithms.build('fed_avg', helpers.local(), weighting=weighting)
  return matrix(run(algorithm, federation())[0].params)


def test_fesem_of_one_center_is_fed_avg():
  data, local = helpers.federation(SIZES), helpers.local()
  fesem = algorithms.build('fesem', local, num_clusters=1, prox_lambda=0.0)
  fed_avg = algorithms.build('fed_avg', local, weighting='uniform')
  begin = initial(fesem, data)
  avg_state = initial(fed_avg, data)._replace(params=begin.centers)
  state = begin
  for r in range(3):
    key = jax.random.fold_in(jax.random.key(9), r)
    state, _ = jax.jit(fesem.step)(state, data, helpers.everyone(data), key)
    avg_state, _ = jax.jit(fed_avg.step)(avg_state, data, helpers.everyone(data), key)
  assert_close(matrix(state.centers), matrix(avg_state.params), rtol=1e-6, atol=1e-7)


def test_non_fed_is_m_independent_runs():
  data, local = helpers.federation(SIZES), helpers.local(chunk=3)
  together, _ = run(algorithms.build('non_fed', local), data)
  for i in (1, 2, 3):  # The smallest, the largest, and one between.
    x, y = data.client(i)
    alone = data.from_arrays(
      x, y, [len(y)], num_classes=data.num_classes, client_ids=[i]
    )
    # Batches may not depend on other clients: the largest one sets the padding.
    state, _ = run(algorithms.build('non_fed', helpers.local(batch_size=4)), alone)
    assert_close(matrix(state.client_params)[0], matrix(together.client_params)[i])


def test_fed_prox_without_penalty_is_fed_avg():
  data, local = federation(), helpers.local(epochs=2)
  prox, _ = run(algorithms.build('fed_prox', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local), data)
  assert_close(matrix(prox.params), matrix(avg.params), rtol=1e-6, atol=1e-7)


def test_fed_avg_of_one_full_batch_step_is_fed_sgd():
  data = federation()
  one_step = algorithms.build('fed_avg', helpers.local(batch_size=0, steps=1))
  avg, _ = run(one_step, data)
  sgd, _ = run(algorithms.build('fed_sgd', helpers.local(batch_size=4, epochs=7)), data)
  assert_close(matrix(sgd.params), matrix(avg.params), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
  ('name', 'weighting'), [('fed_dws', 'by_examples'), ('fed_dist', 'uniform')]
)
def test_reptile_with_a_whole_server_step_is_fed_avg(name, weighting):
  data, local = federation(), helpers.local()
  dist, _ = run(algorithms.build(name, local, server_learning_rate=1.0), data)
  assert_close(matrix(dist.params), average(weighting))


@pytest.mark.parametrize(
  ('variant', 'other'),
  [
    ('model', {'batch_size': 4}),
    ('gradient', {'batch_size': 0, 'steps': 1}),
  ],
)
def test_hypo_cluster_of_one_center_is_fed_avg(variant, other):
  data = federation()
  hypo = algorithms.build(
    'hypo_cluster', helpers.local(), num_clusters=1, variant=variant
  )
  avg = algorithms.build('fed_avg', helpers.local(**other), weighting='uniform')
  state = initial(hypo, data)
  avg_state = initial(avg, data)._replace(params=state.centers)
  for r in range(3):
    key = jax.random.fold_in(jax.random.key(9), r)
    state, _ = jax.jit(hypo.step)(state, data, helpers.everyone(data), key)
    avg_state, _ = jax.jit(avg.step)(avg_state, data, helpers.everyone(data), key)
  assert_close(matrix(state.centers), matrix(avg_state.params), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('name', ['fed_em', 'fed_rc'])
def test_a_mixture_of_one_center_is_fed_avg(name):
  data, local = federation(), helpers.local()
  state, infos = run(algorithms.build(name, local, num_clusters=1), data)
  avg = algorithms.build('fed_avg', local)
  first = initial(algorithms.build(name, local, num_clusters=1), data).centers
  begun = avg._replace(
    init=lambda key, data: avg.init(key, data)._replace(params=first)
  )
  avg_state, avg_infos = run(begun, data)
  assert_close(matrix(state.centers), matrix(avg_state.params), rtol=1e-6, atol=1e-7)
  np.testing.assert_array_equal(state.mixture, np.ones((6, 1)))
  for a, b in zip(infos, avg_infos, strict=True):
    assert_close(a.train_loss, b.train_loss, rtol=1e-6)


def test_fed_soft_without_a_pull_is_non_fed():
  data, local = federation(), helpers.local(epochs=2)
  soft = algorithms.build('fed_soft', local, num_clusters=2, soft_lambda=0.0)
  alone = algorithms.build('non_fed', local)
  own = initial(soft, data).client_params
  begun = alone._replace(
    init=lambda key, data: alone.init(key, data)._replace(client_params=own)
  )
  (state, infos), (other, others) = run(soft, data), run(begun, data)
  assert_close(matrix(state.client_params), matrix(other.client_params), 1e-6, 1e-7)
  assert_close(infos[-1].train_loss, others[-1].train_loss)


def test_the_first_round_of_fed_rc_is_fed_em():
  data, local = federation(), helpers.local()
  (rc, _), (em, _) = (
    run(algorithms.build(name, local, num_clusters=3), data, rounds=1)
    for name in ('fed_rc', 'fed_em')
  )
  assert_close(matrix(rc.centers), matrix(em.centers), rtol=1e-5, atol=1e-6)
  assert_close(rc.mixture, em.mixture, rtol=1e-5, atol=1e-6)
  # Every example is shared among the centers.
  assert_close(rc.classes.sum(axis=(1, 2)), SIZES)


def test_fed_dane_with_equal_clients_is_uniform_fed_avg():
  # Clients with the same data have g - grad F_i(c) = 0.
  one = helpers.federation([6])
  x, y = one.client(0)
  data = one.from_arrays(np.tile(x, (4, 1)), np.tile(y, 4), [6] * 4, num_classes=3)
  local = helpers.local(batch_size=3)
  dane, _ = run(algorithms.build('fed_dane', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local, weighting='uniform'), data)
  assert_close(matrix(dane.params), matrix(avg.params))


def test_fed_dane_of_one_full_batch_step_is_fed_avg_of_who_did_not_drop_out():
  # c - rate * (grad F_i + g - grad F_i), averaged, is c - rate * g.
  data = federation()
  local = helpers.local(batch_size=0, steps=1)._replace(dropout_rate=0.5)
  dane, infos = run(algorithms.build('fed_dane', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local, weighting='uniform'), data)
  assert 0 < min(int(i.trained) for i in infos) < 6
  assert_close(matrix(dane.params), matrix(avg.params))


def test_fed_cluster_that_never_splits_is_fed_avg():
  data, local = federation(), helpers.local()
  cluster, infos = run(algorithms.build('fed_cluster', local, max_clusters=1), data)
  assert_close(matrix(cluster.centers), average('by_examples'), rtol=1e-6, atol=1e-7)
  assert infos[-1].clusters.sizes.tolist() == [6]


def test_robust_without_trimming_is_kmeans_and_the_mean():
  data, local = federation(), helpers.local()
  options = {'num_clusters': 2, 'init_epochs': 3}
  robust = algorithms.build(
    'robust', local, trim=0.0, beta=0.0, init_tolerance=0.0, **options
  )
  fesem = algorithms.build('fesem', local, prox_lambda=0.0, **options)
  state, like = initial(robust, data), initial(fesem, data)
  np.testing.assert_array_equal(state.assignment, like.assignment)
  assert_close(matrix(state.centers), matrix(like.centers))
  # While no client moves, FeSEM's round is the same too.
  after, _ = jax.jit(robust.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  other, info = jax.jit(fesem.step)(
    like, data, helpers.everyone(data), jax.random.key(1)
  )
  assert int(info.clusters.moved) == 0
  assert_close(matrix(after.centers), matrix(other.centers))


def test_fesem_ma_from_a_common_start_is_fesem():
  # Clients that start from one model are nearest to it with their units where they are.
  data, local = federation(), helpers.local(epochs=2)
  plain, infos = run(algorithms.build('fesem', local, num_clusters=2), data)
  matched, others = run(algorithms.build('fesem_ma', local, num_clusters=2), data)
  np.testing.assert_array_equal(plain.assignment, matched.assignment)
  assert_close(matrix(plain.centers), matrix(matched.centers), rtol=1e-5, atol=1e-6)
  for a, b in zip(infos, others, strict=True):
    assert_close(a.clusters.objective, b.clusters.objective, rtol=1e-4)


def test_fesem_ma_averages_permuted_copies_where_fesem_mixes_their_units():
  data, local = helpers.federation([8]), helpers.local()
  model = jax.jit(local.model.init)(jax.random.key(3))
  rng = np.random.default_rng(0)

  def permuted(order):
    hidden = {n: a[..., order] for n, a in model['dense0'].items()}
    logits = model['logits'] | {'kernel': model['logits']['kernel'][order]}
    return {'dense0': hidden, 'logits': logits}

  copies = [permuted(rng.permutation(5)) for _ in range(6)]
  stack = jax.tree.map(lambda *rows: jnp.stack(rows), *copies)
  means = {}
  for cluster_on in ('all', 'matched'):
    compare = comparison.build(cluster_on, local.model)
    known = compare.known(compare.part(tree.expand(model)))
    _, distance, models = compare.nearest(stack, known)
    means[cluster_on] = jax.tree.map(lambda rows: rows.mean(axis=0), models)
    assert (distance.max() < 1e-6) == (cluster_on == 'matched')
  x, _ = data.client(0)
  want = local.model.apply(model, x)
  assert_close(local.model.apply(means['matched'], x), want)
  assert np.abs(local.model.apply(means['all'], x) - want).max() > 0.05
