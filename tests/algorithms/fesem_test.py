"""FeSEM against float64, stacked and streamed, its penalty and its options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.common.em_steps import penalty
from fesem_jax.core import sharding
from fesem_jax.core.types import Cohort
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  reference_training,
  run,
)
from tests.support.nights import rest_by_night


@pytest.mark.parametrize(
  ('prox_weighting', 'weighting', 'shared_start'),
  rest_by_night([('uniform', 'uniform', 'off'), ('paper', 'by_examples', 'on')]),
)
def test_fesem_matches_float64_reference(prox_weighting, weighting, shared_start):
  data, local = federation(), helpers.local(epochs=2, chunk=4)
  local = local._replace(shared_start=shared_start)
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, prox_lambda=0.2, prox_weighting=prox_weighting,
    weighting=weighting,
  )  # fmt: skip
  state = initial(algorithm, data)
  centers, assignment = reference.vectors(state.centers), np.asarray(state.assignment)
  like = reference.from_params(state.centers, 0)
  paper = reference.paper_penalty(0.2, SIZES)
  prox = np.full(6, 0.2) if prox_weighting == 'uniform' else paper
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  objectives, moves = [], []
  for r in (1, 2, 3, 4):
    key = jax.random.fold_in(jax.random.key(9), r)
    train, old = reference_training(local, data, like, key, prox), assignment
    models, assignment, centers = reference.fesem_round(
      train, centers, assignment, weights
    )
    moves.append((assignment != old).sum())
    objectives.append(reference.objective(models, centers, assignment, weights))
  state, infos = run(algorithm, data, rounds=4)
  assert_close(reference.vectors(state.centers), centers, rtol=1e-3)
  np.testing.assert_array_equal(state.assignment, assignment)
  assert_close([i.clusters.objective for i in infos], objectives, rtol=1e-3)
  assert [int(i.clusters.moved) for i in infos] == moves


def lost_start(algorithm, data):
  """FeSEM's state with all clients in cluster 0, at the mean of all models."""
  state = initial(algorithm, data)

  def mean(x):
    return x.mean(axis=0, keepdims=True)

  def far(x, c):
    return jnp.concatenate([mean(x), 100.0 + mean(x)])

  centers = jax.tree.map(far, state.client_params, state.centers)
  nobody = jnp.zeros_like(state.assignment)
  return state._replace(centers=centers, assignment=nobody)


def test_an_empty_center_moves_to_the_farthest_client_only_where_asked():
  data, local = federation(), helpers.local(hidden=())
  both = [
    algorithms.build('fesem', local, num_clusters=2, reseed_empty=on)
    for on in (False, True)
  ]
  state = lost_start(both[0], data)
  plain, seeded = (
    jax.jit(a.step)(state, data, helpers.everyone(data), jax.random.key(1))[0]
    for a in both
  )
  points = matrix(plain.client_params)
  distance = ((points - matrix(state.centers)[0]) ** 2).sum(axis=1)
  farthest = int(distance.argmax())
  assert not plain.assignment.any()
  np.testing.assert_array_equal(np.flatnonzero(seeded.assignment), [farthest])
  np.testing.assert_array_equal(matrix(seeded.centers)[1], points[farthest])
  np.testing.assert_array_equal(matrix(seeded.centers)[0], matrix(plain.centers)[0])


def test_fesem_compares_only_the_named_layer():
  data, local = helpers.federation(SIZES), helpers.local(rate=1e-6)
  algorithm = algorithms.build('fesem', local, num_clusters=2, cluster_on='logits')
  state = initial(algorithm, data)
  # Center 1 is nearer in all parameters, center 0 in the last layer.
  centers = jax.tree.map(lambda c: jnp.stack([c[0], c[0]]), state.centers)
  centers['dense0']['kernel'] = centers['dense0']['kernel'].at[0].add(10.0)
  centers['logits']['kernel'] = centers['logits']['kernel'].at[1].add(1.0)
  clients = jnp.ones(6, jnp.int32).at[0].set(0)
  state = state._replace(centers=centers, assignment=clients)
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  np.testing.assert_array_equal(after.assignment, clients)
  whole = algorithms.build('fesem', local, num_clusters=2)
  state = state._replace(assignment=jnp.ones(6, jnp.int32))
  after, _ = jax.jit(whole.step)(state, data, helpers.everyone(data), jax.random.key(1))
  np.testing.assert_array_equal(after.assignment, 1)


def test_streamed_clients_give_what_stacked_ones_do():
  local = helpers.local(chunk=2, devices=2)
  options = {'weighting': 'by_examples', 'cluster_on': 'logits', 'init_clients': 3}
  data = sharding.replicate(federation(), local.mesh)
  results = {}
  for state in ('stacked', 'streamed'):
    algorithm = algorithms.build(
      'fesem', local, num_clusters=2, client_state=state, **options
    )
    results[state] = run(algorithm, data)
  (stacked, infos), (streamed, others) = results['stacked'], results['streamed']
  assert streamed.client_params is None
  assert jax.tree.leaves(stacked.client_params)[0].shape[0] == len(SIZES)
  np.testing.assert_array_equal(stacked.assignment, streamed.assignment)
  assert_close(matrix(stacked.centers), matrix(streamed.centers), rtol=1e-6, atol=1e-7)
  for a, b in zip(infos, others, strict=True):
    assert_close(a.clusters.objective, b.clusters.objective, rtol=1e-5)


def test_more_clients_than_the_first_clustering_sees_go_to_its_centers():
  data = helpers.federation([40] * 40, groups=np.arange(40) % 2)
  local = helpers.local(chunk=8, batch_size=10, rate=0.5, hidden=())
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, init_clients=10, init_epochs=20
  )
  state = initial(algorithm, data)
  assert adjusted_rand_score(np.arange(40) % 2, state.assignment) == 1.0
  nearest = reference.nearest(matrix(state.client_params), matrix(state.centers))
  np.testing.assert_array_equal(nearest, state.assignment)


def test_a_client_with_few_examples_is_pulled_more_as_in_the_paper():
  # lambda / (m alpha_i) = lambda 4 / n_i; two clients without examples are padding.
  data = helpers.federation([1, 3, 8]).reorder(np.arange(3), num_clients=5)
  cohort = Cohort(np.array([2, 0, 1, 4]), everyone=False)
  factors = penalty(0.5, 'paper', data, cohort)
  assert_close(factors[:3], [2 / 8, 2, 2 / 3], rtol=1e-6)
  assert np.isfinite(factors).all()
  assert_close(penalty(0.5, 'uniform', data, cohort), 0.5, rtol=1e-6)
  assert penalty(0.0, 'paper', data, cohort) is None
