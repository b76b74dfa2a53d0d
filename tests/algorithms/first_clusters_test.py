"""How clustered methods start, against float64."""

import dataclasses

import jax
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common.first_by_loss import train_and_choose
from fesem_jax.algorithms.common.random_centers import random_models
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.federated_data import Attack
from fesem_jax.core.sending import Sends
from fesem_jax.data import attacks
from fesem_jax.training.privacy import differential_privacy
from tests.support import draws, helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
  unflatten,
)
from tests.support.nights import rest_by_night


def trained_from_one_start(local, data, key, epochs):
  """Each client's model as the reference finds it, list of S models."""
  model_key, train_key = draws.start_keys(key)
  start = reference.from_params(tree.expand(local.model.init(model_key)), 0)
  local = local._replace(schedule=local.schedule._replace(epochs=epochs))
  count = data.num_clients
  return reference_round(local, data, [start] * count, range(count), train_key)


def in_order(assignment, like):
  """For each cluster of `like`, the one of `assignment` that holds its clients."""
  assert adjusted_rand_score(assignment, like) == 1
  return [assignment[np.flatnonzero(like == k)[0]] for k in np.unique(like)]


def test_fesem_starts_by_the_named_layer_alone():
  data, local, key = federation(), helpers.local(), jax.random.key(4)
  models = trained_from_one_start(local, data, key, 3)
  whole = np.stack([reference.flat(m) for m in models])
  logits = np.stack([reference.flat(m[-1:]) for m in models])
  want, _, _ = reference.best_kmeans(logits, 2)
  other, _, _ = reference.best_kmeans(whole, 2)
  assert adjusted_rand_score(want, other) < 1
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, init_epochs=3, cluster_on='logits'
  )
  state = initial(algorithm, data, key)
  assert adjusted_rand_score(want, state.assignment) == 1
  # The centers are means of all parameters.
  means = reference.means(
    whole, np.asarray(state.assignment), np.ones(6), np.zeros((2, whole.shape[1]))
  )
  assert_close(reference.vectors(state.centers), means, rtol=1e-3)


def test_fesem_starts_by_the_losses_of_trained_random_models():
  data, local, key = federation(), helpers.local(devices=2), jax.random.key(4)
  keys = jax.random.split(jax.random.fold_in(key, prng_streams.DRAWS), 3)
  stack, train_key = jax.vmap(local.model.init)(keys), draws.start_keys(key)[1]
  random = [reference.from_params(stack, k) for k in range(3)]
  trained, losses, before = np.empty((6, 3), object), *np.empty((2, 6, 3))
  for i in range(6):
    batches = [
      (x, y, np.full(len(y), 1 / 3))
      for x, y in helpers.batches(data, local.schedule, i, train_key)
    ]
    for k, model in enumerate(random):
      before[i, k], _ = reference.loss_and_gradient(model, *data.client(i))
      model, _ = reference.local_sgd(model, batches, 0.1)
      trained[i, k] = reference.flat(model)
      losses[i, k], _ = reference.loss_and_gradient(model, *data.client(i))
  best = losses.argmin(axis=1)
  assert len(set(best)) == 2  # One center has no client, and stays as it is.
  assert (best != before.argmin(axis=1)).any()
  points = np.stack([trained[i, best[i]] for i in range(6)])
  old = np.stack([reference.flat(model) for model in random])
  algorithm = algorithms.build(
    'fesem', local, num_clusters=3, init_models='by_loss', weighting='by_examples'
  )
  state = initial(algorithm, data, key)
  np.testing.assert_array_equal(state.assignment, best)
  assert_close(reference.vectors(state.client_params), points, rtol=1e-3)
  want = reference.means(points, best, np.array(SIZES), old)
  assert_close(reference.vectors(state.centers), want, rtol=1e-3)


def test_random_models_are_each_clients_own():
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build('fesem', local, num_clusters=2, init_models='random')
  state = initial(algorithm, data)
  key, points = jax.random.key(0), []
  for i in range(6):
    own = jax.random.fold_in(prng_streams.fold(key, prng_streams.MODEL), i)
    start = reference.from_params(tree.expand(local.model.init(own)), 0)
    once = local._replace(schedule=local.schedule._replace(epochs=1))
    train_key = prng_streams.fold(key, prng_streams.LOCAL)
    points.append(reference.flat(*reference_round(once, data, [start], [i], train_key)))
  assert_close(reference.vectors(state.client_params), points, rtol=1e-3)


def test_clients_choose_their_first_cluster_by_what_they_trained():
  """Neither noise, compression nor lies are in the models that a client compares."""
  data, plain, key = federation(), helpers.local(hidden=()), jax.random.key(1)

  def result(local, data=data):
    choose = jax.jit(lambda data, key: train_and_choose(
      local, data, helpers.everyone(data), key, 3, 'uniform'
    ))  # fmt: skip
    return choose(data, key)

  @jax.jit
  def scaled(data, key, factor):
    def send(key, start, trained):
      return jax.tree.map(lambda s, w: s + factor * (w - s), start, trained)

    local = plain._replace(sends=Sends(send))
    return train_and_choose(local, data, helpers.everyone(data), key, 3, 'uniform')

  clear = result(plain)
  choice = np.asarray(clear.assignment)
  draw_key = prng_streams.fold(key, prng_streams.DRAWS)
  starts = matrix(random_models(plain, draw_key, 3))[choice]
  trained = matrix(clear.trained.params)
  halved = scaled(data, key, 0.5)
  np.testing.assert_array_equal(halved.assignment, choice)
  assert_close(matrix(halved.trained.params), (starts + trained) / 2)
  lying = Attack(np.ones(6, bool), (attacks.Replacement(),))
  lied = result(plain, dataclasses.replace(data, attack=lying))
  np.testing.assert_array_equal(lied.assignment, choice)
  assert_close(matrix(lied.trained.params), 2 * starts - trained)
  sends = differential_privacy(0.1, 3.0, where='client', delta=0)
  noisy = result(plain._replace(sends=sends))
  np.testing.assert_array_equal(noisy.assignment, choice)
  assert np.abs(matrix(noisy.trained.params) - trained).max() > 0.1
  means = [matrix(noisy.trained.params)[choice == k].mean(axis=0) for k in set(choice)]
  assert_close(matrix(noisy.centers)[sorted(set(choice))], np.stack(means))
  infinite = scaled(data, key, np.inf)
  assert not np.asarray(infinite.trained.finite).any()
  assert_close(matrix(infinite.trained.params), starts)


def test_clients_that_no_model_trains_are_with_the_first_one():
  # Client 1 has no examples, and those of client 2 are not numbers.
  data, local = helpers.federation([3, 0, 2, 3]), helpers.local(hidden=())
  x = np.array(data.x)
  x[3:5] = np.nan
  data = dataclasses.replace(data, x=x)
  choose = jax.jit(
    lambda key: train_and_choose(local, data, helpers.everyone(data), key, 3, 'uniform')
  )
  result = choose(jax.random.key(1))
  assert result.assignment[1:3].tolist() == [0, 0]
  assert result.trained.finite.tolist() == [True, True, False, True]
  assert np.isfinite(matrix(result.centers)).all()


def test_robust_starts_from_trimmed_k_means():
  data, local, key = federation(), helpers.local(), jax.random.key(0)
  trim = 0.34
  points = np.stack(
    [reference.flat(m) for m in trained_from_one_start(local, data, key, 2)]
  )
  assignment, centers, _ = reference.best_kmeans(points, 2, trim)
  kept = reference.trimmed(points, assignment, centers, trim)
  assert not kept.all()
  algorithm = algorithms.build(
    'robust', local, num_clusters=2, trim=trim, aggregation='trimmed_mean(0.34)',
    init_epochs=2, **draws.ONCE,
  )  # fmt: skip
  state = initial(algorithm, data, key)
  order = in_order(np.asarray(state.assignment), assignment)
  assert_close(reference.vectors(state.centers)[order], centers, rtol=1e-3)
  untrimmed = reference.means(points, assignment, np.ones(6), centers)
  assert np.abs(untrimmed - centers).max() > 1e-2


@pytest.mark.parametrize(('restarts', 'rounds'), rest_by_night([(5, 2), (1, 0)]))
def test_hypo_cluster_starts_from_the_best_draw(restarts, rounds):
  data, local, key = federation(), helpers.local(), jax.random.key(3)
  sample_key, keys = draws.hypo_keys(key, restarts)
  sample = draws.sample(sample_key, data, 4)

  def losses_of(centers, ids):
    return reference.losses(centers, data, ids)

  tried = []
  for draw_key, train_key in keys:
    stack = jax.vmap(local.model.init)(jax.random.split(draw_key, 2))
    centers = [reference.from_params(stack, k) for k in (0, 1)]
    for r in range(rounds):
      best = losses_of(centers, sample).argmin(axis=1)
      round_key = jax.random.fold_in(train_key, r)
      starts = [centers[k] for k in best]
      trained = reference_round(local, data, starts, sample, round_key)
      points = np.stack([reference.flat(w) for w in trained])
      old = np.stack([reference.flat(c) for c in centers])
      new = reference.means(points, best, np.array(SIZES)[sample], old)
      centers = [unflatten(c, centers[0]) for c in new]
    tried.append((losses_of(centers, sample).min(axis=1).sum(), centers))
  totals = [total for total, _ in tried]
  centers = tried[int(np.argmin(totals))][1]
  algorithm = algorithms.build(
    'hypo_cluster', local, num_clusters=2, init_restarts=restarts, init_rounds=rounds,
    init_clients=4, weighting='by_examples',
  )  # fmt: skip
  state = initial(algorithm, data, key)
  assert_close(
    reference.vectors(state.centers), [reference.flat(c) for c in centers], rtol=1e-3
  )
  want = losses_of(centers, range(6)).argmin(axis=1)
  np.testing.assert_array_equal(state.assignment, want)
