"""FedDrift against float64: drift, new models, merging, and clusters that it finds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.federated_data import FederatedData
from tests.support import helpers, reference
from tests.support.cluster_steps import fed_drift_step
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  reference_round,
  unflatten,
)
from tests.support.nights import rest_by_night


@pytest.mark.parametrize(
  ('alone', 'delta'), rest_by_night([(True, 0.3), (False, 0.02)])
)
def test_matches_float64_reference(alone, delta):
  # Every second round begins with a time step, in which the labels change.
  first, local = federation(), helpers.local(epochs=3)
  second = federation_of_other_labels(first)
  algorithm = algorithms.build(
    'fed_drift', local, drift_delta=delta, check_every=2, start_alone=alone,
    max_clusters=7,
  )  # fmt: skip
  state, step = initial(algorithm, first), jax.jit(algorithm.step)
  centers = [reference.from_params(state.centers, k) for k in range(7)]
  weights = np.array(SIZES)
  own = np.arange(6) if alone else np.zeros(6, int)

  def losses_of(data):
    return reference.losses(centers, data, range(6))

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


def test_who_has_no_losses_takes_no_part_in_the_begin_of_a_time_step():
  # Models 0 to 2 say their class, model 3 none. All clients but one were in model 1.
  y = np.array([0] * 4 + [2] + [1] * 4 + [0] * 2)
  x, sizes = np.zeros((11, *helpers.SHAPE), np.float32), [4, 1, 0, 4, 2]
  data = FederatedData.from_arrays(x, y, sizes, num_classes=3)
  x[9] = np.nan  # Of client 4.
  data = dataclasses.replace(data, x=x)
  algorithm = algorithms.build(
    'fed_drift', helpers.local(hidden=()), max_clusters=5, check_every=1,
    drift_delta=0.01,
  )  # fmt: skip
  logits = {'kernel': jnp.zeros((5, *helpers.SHAPE, 3)), 'bias': 5.0 * jnp.eye(5, 3)}
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
