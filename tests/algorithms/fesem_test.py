"""FeSEM against float64, and its options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
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


@pytest.mark.parametrize(
  ('prox_weighting', 'weighting', 'shared_start'),
  [('uniform', 'uniform', 'off'), ('paper', 'by_examples', 'on')],
)
def test_fesem_matches_float64_reference(prox_weighting, weighting, shared_start):
  data, local = federation(), helpers.local(epochs=2, chunk=4)
  local = local._replace(shared_start=shared_start)
  algorithm = algorithms.build(
    'fesem',
    local,
    num_clusters=2,
    prox_lambda=0.2,
    prox_weighting=prox_weighting,
    weighting=weighting,
  )
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
