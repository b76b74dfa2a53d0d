"""FedDrift's decisions against words and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.server import concept_drift
from tests.support.cluster_steps import fed_drift_step

NONE = np.inf
decide = jax.jit(concept_drift.decide)


def decided(
  losses, assignment, before, last_used, *, delta=0.5, sent=None, weights=None
):
  count = len(losses)
  clients = concept_drift.Clients(
    jnp.array(losses, jnp.float32),
    jnp.array(assignment, jnp.int32),
    jnp.array(before, jnp.float32),
    jnp.ones(count, bool) if sent is None else jnp.array(sent),
    jnp.ones(count) if weights is None else jnp.array(weights, jnp.float32),
    jnp.arange(count),
  )
  result = decide(clients, jnp.array(last_used, jnp.int32), jnp.int32(9), delta)
  return jax.tree.map(np.asarray, result)


def test_a_time_step_is_the_one_in_words():
  rng, news, merges = np.random.default_rng(0), 0, 0
  for _ in range(30):
    last_used = rng.permutation([8, 8, 7, 6, -1, -1])
    in_use = np.flatnonzero(last_used >= 0)
    losses = np.where(last_used >= 0, rng.lognormal(sigma=0.6, size=(5, 6)), NONE)
    losses = losses.astype(np.float32)
    assignment, before = (
      rng.choice(in_use, 5),
      rng.uniform(0, 1.5, 5).astype(np.float32),
    )
    weights, delta = rng.integers(1, 9, 5), rng.uniform(0.1, 0.6)
    result = decided(
      losses, assignment, before, last_used, delta=delta, weights=weights
    )
    after, least, started, clusters, shares = fed_drift_step(
      losses, assignment, before, last_used, weights, delta
    )
    np.testing.assert_array_equal(result.assignment, after)
    np.testing.assert_allclose(result.loss, least)
    new = {int(k): int(result.best[i]) for i, k in enumerate(result.new) if k < 6}
    assert new == started
    into, used = np.arange(6), last_used.copy()
    for cluster in clusters:
      into[cluster] = min(cluster)
      used[[k for k in cluster if k != min(cluster)]] = -1
    used[after] = 9
    np.testing.assert_array_equal(result.into, into)
    np.testing.assert_array_equal(result.last_used, used)
    np.testing.assert_allclose(result.weights[[*shares]], [*shares.values()])
    news, merges = news + len(new), merges + (into != np.arange(6)).sum()
  assert min(news, merges) > 10
  assert (
    result.assignment.dtype == result.new.dtype == result.last_used.dtype == np.int32
  )


def test_a_client_counts_for_its_old_model_until_that_rises_by_more_than_delta():
  # Both now prefer model 1; client 0's old model rose by delta alone.
  losses, weights = [[1.5, 0.9], [1.75, 0.9]], [3, 4]
  result = decided(losses, [0, 0], [1, 1], [8, 8], weights=weights)
  assert result.best.tolist() == [1, 1]
  assert result.weights.tolist() == [3, 7]
  # A least loss that rose by delta alone is no drift.
  assert decided([[1.5, 2.0]], [0], [1], [8, 8]).new.tolist() == [2]
  # Without its losses nothing is known: it keeps its model and counts for none.
  result = decided(losses, [0, 0], [1, 1], [8, 8], weights=weights, sent=[False, True])
  assert result.assignment.tolist() == [0, 1]
  assert result.weights.tolist() == [0, 4]


def test_clients_without_examples_keep_no_model_in_use():
  # Client 0, who has none, prefers model 1; client 2 starts a model in its place.
  losses = [[2.0, 0.5], [1.0, 2.0], [3.0, 4.0]]
  result = decided(losses, [0, 0, 0], [1, 1, 1], [8, 7], weights=[0, 1, 1])
  assert result.new.tolist() == [2, 2, 1]
  assert result.assignment.tolist() == [1, 0, 1]
  result = decided(losses[:2], [0, 0], [1, 1], [8, 7], weights=[0, 1])
  assert result.last_used.tolist() == [9, 7]


def test_models_merge_only_if_less_than_delta_apart():
  losses = [[1.0, 1.5], [1.25, 1.0]]
  assert decided(losses, [0, 1], [1, 1], [8, 8]).into.tolist() == [0, 1]
  merged = decided(losses, [0, 1], [1, 1], [8, 8], delta=0.625)
  assert merged.into.tolist() == [0, 0]
  assert merged.last_used.tolist() == [9, -1]
  # Models of the first time step, 0, are in use.
  assert decided(losses, [0, 1], [1, 1], [0, 0], delta=1).into.tolist() == [0, 0]
  # Nor if they are not in use.
  apart = decided(losses, [0, 1], [1, 1], [8, -1], delta=0.625)
  assert apart.into.tolist() == [0, 1]


def test_a_model_whose_loss_is_not_finite_anywhere_is_not_merged():
  losses = [[1.0, 1.1], [1.1, 1.0], [1.0, NONE]]
  assert decided(losses, [0, 1, 0], [1] * 3, [8, 8]).into.tolist() == [0, 1]
  # Unless it is that of a client whose losses did not arrive.
  result = decided(losses, [0, 1, 0], [1] * 3, [8, 8], sent=[True, True, False])
  assert result.into.tolist() == [0, 0]


@pytest.mark.parametrize(
  ('taken', 'models'),
  [
    ([False, False, True, False], [3, 4, 1, 0]),
    ([True, False, True, False], [3, 4, 1, 4]),
  ],
)
def test_clients_of_least_id_get_free_models_first(taken, models):
  result = concept_drift.free_models(
    jnp.array([True, False, True, True]),
    jnp.array([3, -1, 8, 1], jnp.int32),
    jnp.array(taken),
    jnp.array([5, 0, 2, 9], jnp.int32),
  )
  assert result.tolist() == models


def test_distances_are_rises_of_mean_losses_by_weight():
  rng = np.random.default_rng(0)
  losses = rng.uniform(0, 2, (6, 4)).astype(np.float32)
  weights = rng.integers(0, 4, (6, 4)).astype(np.float32)
  weights[:, 2] = 0  # A model that fits no client.
  usable = np.array([True, True, False, True])
  losses[1, 2] = NONE
  result = concept_drift.distances(losses, weights, jnp.asarray(usable))

  def on(j, k):
    return np.average(losses[:, j].astype(np.float64), weights=weights[:, k])

  for j in range(4):
    for k in range(4):
      if j == k or not (usable[j] and usable[k]):
        assert result[j, k] == NONE
      else:
        want = max(on(j, k) - on(j, j), on(k, j) - on(k, k), 0)
        np.testing.assert_allclose(result[j, k], want, rtol=1e-5, atol=1e-6)


def test_distances_do_not_depend_on_the_unit_of_weights():
  losses = jnp.array([[1.0, 1.5], [1.25, 1.0], [2.0, 3.0]])
  weights = jnp.array([[3.0, 0.0], [0.0, 5.0], [1.0, 0.0]])
  usable = jnp.ones(2, bool)
  # Model 1 has a loss of (3 * 1.5 + 3) / 4 on cluster 0, and one of 1 on its own.
  for unit in (1.0, 1 / 64):
    result = concept_drift.distances(losses, unit * weights, usable)
    np.testing.assert_allclose(result, [[NONE, 0.875], [0.875, NONE]])


def test_every_client_may_start_a_model_where_no_client_keeps_one():
  result = concept_drift.free_models(
    jnp.ones(4, bool),
    jnp.array([8, -1, 7], jnp.int32),
    jnp.zeros(3, bool),
    jnp.arange(4),
  )
  assert result.tolist() == [1, 2, 0, 3]
