"""Losses of batches and examples; losses and gradients at models that do not train."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.core import tree
from fesem_jax.core.arrangement import arrange
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort, Model
from fesem_jax.training.batch_losses import Batch
from fesem_jax.training.by_batches import EVALUATION_BATCH, evaluation_width
from fesem_jax.training.client_losses import (
  cohort_gradients,
  cohort_losses,
  least_loss,
  personal_losses,
  start_by_loss,
)
from fesem_jax.training.example_losses import (
  example_losses,
  example_targets,
  shares_of_least_loss,
)
from tests.support import helpers, reference
from tests.support.nights import rest_by_night


@pytest.mark.parametrize(('chunk', 'devices'), [(1, 1), (2, 1), (2, 2)])
def test_losses_of_each_example_match_reference(chunk, devices):
  data = helpers.federation([300, 7, 101, 1])
  local = helpers.local(chunk=chunk, devices=devices)
  models = helpers.first_models(local, 3)
  ids = np.array([2, 0, 3, 4, 1, 4], np.int32)  # 4 is an empty place.
  data, _ = arrange(local, data, data, data_placement='replicated')
  places = {int(c): p for p, c in enumerate(np.asarray(data.client_ids))}
  cohort = Cohort(np.array([places.get(i, 4) for i in ids], np.int32), False)
  measure = jax.jit(lambda models, data: example_losses(local, models, data, cohort))
  got = np.asarray(measure(models, data))
  assert got.shape == (6, 3, 300)
  for row, i in enumerate(ids):
    if i == 4:
      np.testing.assert_array_equal(got[row], 0)
      continue
    x, y = data.client(places[i])
    np.testing.assert_array_equal(got[row, :, len(y) :], 0)
    for k in range(3):
      want = reference.example_losses(reference.from_params(models, k), x, y)
      np.testing.assert_allclose(got[row, k, : len(y)], want, rtol=1e-3, atol=1e-6)


def test_the_loss_of_an_example_that_is_not_a_number_is_infinite():
  data = helpers.federation([3, 2])
  x = np.array(data.x)
  x[1] = np.nan
  local = helpers.local()
  models = helpers.first_models(local, 2)
  data = dataclasses.replace(data, x=x)
  losses = example_losses(local, models, data, helpers.everyone(data))
  np.testing.assert_array_equal(np.isinf(losses[0]), [[False, True, False]] * 2)
  assert np.isfinite(losses[1]).all()


@pytest.mark.parametrize(
  ('devices', 'placement'),
  rest_by_night([(1, None), (2, None), (2, 'replicated'), (2, 'sharded')]),
)
@pytest.mark.optimized
def test_losses_of_every_client_match_reference(devices, placement):
  data = helpers.federation([30, 7, 12, 1, 5])
  local = helpers.local(devices=devices)
  models = helpers.first_models(local, 3)
  want = np.empty((5, 3))
  for i, k in np.ndindex(5, 3):
    model = reference.from_params(models, k)
    want[i, k], _ = reference.loss_and_gradient(model, *data.client(i))
  places = np.arange(5)
  if placement is not None:  # None is a user's own split, on the host.
    data, _ = arrange(local, data, data, data_placement=placement)
    assert (data.shard_rows is None) == (placement == 'replicated')
    places = np.asarray(data.client_ids)
  measure = (
    fj.cohort_losses
    if placement is None
    else jax.jit(fj.cohort_losses, static_argnums=0)
  )
  got = np.asarray(measure(local, models, data))
  assert got.shape == (data.num_clients, 3)
  exists = places < 5
  np.testing.assert_allclose(got[exists], want[places[exists]], rtol=1e-4)
  np.testing.assert_array_equal(got[~exists], 0)
  if placement is not None:
    everyone = helpers.everyone(data)
    np.testing.assert_array_equal(got, measure(local, models, data, everyone))


def test_clients_choose_the_first_of_the_models_of_least_loss():
  data, local = helpers.federation([30, 7, 12, 1], groups=[0, 1, 0, 1]), helpers.local()
  models = helpers.first_models(local, 3)
  # The second is not a number, and the last the first again.
  models = jax.tree.map(
    lambda x: jnp.concatenate([x.at[1].set(jnp.nan), x[:1]]), models
  )
  cohort = Cohort(np.array([1, 0, 3, 2], np.int32), False)
  losses = np.asarray(cohort_losses(local, models, data, cohort))
  assert np.isinf(losses[:, 1]).all()
  expected = [0 if row[0] <= row[2] else 2 for row in losses]
  assert set(expected) == {0, 2}
  result = least_loss(local, models, data, cohort)
  assert (result.tolist(), result.dtype) == (expected, np.int32)
  choice, some = jnp.array([3, 3, 1, 1]), jnp.array([True, False, True, False])
  result = start_by_loss(local, models, choice, some, data, cohort)
  assert result.tolist() == [expected[0], 3, expected[2], 1]
  none = start_by_loss(local, models, choice, ~some & some, data, cohort)
  assert none.tolist() == choice.tolist()


@pytest.mark.parametrize('chunk', [1, 3])
def test_losses_of_own_models_match_reference(chunk):
  data, local = helpers.federation([130, 7, 12]), helpers.local(chunk=chunk)
  stack = helpers.first_models(local, 4)
  cohort = Cohort(np.array([2, 3, 0, 1], np.int32), False)  # 3 is an empty place.
  got = np.asarray(personal_losses(local, stack, data, cohort))
  for row, i in ((0, 2), (2, 0), (3, 1)):
    model = reference.from_params(stack, row)
    loss, _ = reference.loss_and_gradient(model, *data.client(i))
    np.testing.assert_allclose(got[row], loss, rtol=1e-4)
  assert got[1] == 0


def test_gradients_that_are_not_finite_count_for_nothing():
  data, local = helpers.federation([3, 2, 4]), helpers.local(chunk=3)
  x = np.array(data.x)
  x[4] = np.inf  # Of the second client.
  data = dataclasses.replace(data, x=x)
  stack = tree.expand(helpers.first_model(local))
  cohort, counts = helpers.everyone(data), jnp.array([True] * 3)
  got, sums = cohort_gradients(local, stack, data, cohort, counts)
  rows = reference.vectors(got)
  assert not rows[1].any()
  assert rows[0].any()
  np.testing.assert_allclose(reference.vectors(sums.params)[0], rows[0] + rows[2], 1e-5)
  assert sums.weight.tolist() == [2]


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('chunk', rest_by_night([1, 2]))
@pytest.mark.optimized
def test_gradients_of_each_client_and_their_sum_match_reference(chunk, devices):
  data = helpers.federation([30, 7, 12, 1])
  local = helpers.local(chunk=chunk, devices=devices)
  stack = tree.expand(helpers.first_model(local))
  ids, counts = [2, 0, 4, 3], jnp.array([True, False, True, True])
  cohort = Cohort(np.array(ids, np.int32), False)  # 4 is an empty place.

  @jax.jit
  def gradients(stack, data):
    kept = cohort_gradients(local, stack, data, cohort, counts)
    return kept, cohort_gradients(local, stack, data, cohort, counts, keep=False)

  (got, sums), (none, same) = gradients(stack, data)
  model = reference.from_params(stack, 0)
  want = {
    i: reference.flat(reference.loss_and_gradient(model, *data.client(i))[1])
    for i in (2, 0, 3)
  }
  result = reference.vectors(got)
  for place, i in ((0, 2), (1, 0), (3, 3)):
    np.testing.assert_allclose(result[place], want[i], rtol=1e-4, atol=1e-6)
  total = reference.vectors(sums.params)[0]
  np.testing.assert_allclose(total, want[2] + want[3], rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(sums.weight, [2])
  assert none is None
  chex.assert_trees_all_equal(sums, same)


# Shares and targets of single examples.


SIZES = [130, 7, 1]
SOME = Cohort(np.array([1, 3, 0, 2], np.int32), everyone=False)  # 3 is an empty place.


def models_of(local):
  models = helpers.first_models(local, 3)
  # The last one is the first again: never the best, as ties go to the first.
  return jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), models)


@pytest.mark.parametrize('chunk', [1, 3])
def test_each_example_counts_for_the_model_of_its_least_loss(chunk):
  data, local = helpers.federation(SIZES), helpers.local(chunk=chunk)
  models = models_of(local)
  got = np.asarray(shares_of_least_loss(local, models, data, SOME))
  assert got.shape == (4, 4)
  for row, i in ((0, 1), (2, 0), (3, 2)):
    x, y = data.client(i)
    losses = [
      reference.example_losses(reference.from_params(models, k), x, y) for k in range(3)
    ]
    counts = np.bincount(np.argmin(losses, axis=0), minlength=4)
    np.testing.assert_allclose(got[row], counts / len(y), rtol=1e-6)
  np.testing.assert_array_equal(got[1], 0)


def test_a_loss_that_is_not_a_number_is_never_the_least():
  data, local = helpers.federation([4]), helpers.local()
  models = jax.tree.map(lambda x: x.at[0].set(jnp.nan), models_of(local))
  cohort = helpers.everyone(data)
  got = np.asarray(shares_of_least_loss(local, models, data, cohort))[0]
  assert got[0] == 0
  np.testing.assert_allclose(got.sum(), 1, rtol=1e-6)
  # Where none is a number, the first has the least.
  x = np.full_like(data.x, np.nan)
  got = shares_of_least_loss(local, models, dataclasses.replace(data, x=x), cohort)
  assert got.tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize('chunk', [1, 3])
def test_targets_of_the_cohort_are_in_order_and_0_behind_the_last(chunk):
  y = np.arange(1, 13).reshape(6, 2).astype(np.float32)
  data = FederatedData.from_arrays(np.zeros((6, 6)), y, [3, 2, 1], task='regression')
  got = np.asarray(example_targets(helpers.local(chunk=chunk), data, SOME))
  assert got.shape == (4, 3, 2)
  expected = np.zeros((4, 3, 2))
  expected[0, :2], expected[2], expected[3, 0] = y[3:5], y[:3], y[5]
  np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
  ('most', 'width'), [(1, 1), (128, 128), (129, 65), (200, 100), (257, 86), (300, 100)]
)
def test_batches_of_the_largest_client_are_of_one_size(most, width):
  assert evaluation_width(most) == width
  assert -(-most // width) == -(-most // EVALUATION_BATCH)


# The loss of a batch, of which only the examples of weight 1 count.


# Outputs p x, and their squared distances from the targets as losses.
MODEL = Model(
  lambda key: jnp.float32(1.0), lambda p, x: p * x, lambda z, y: (z - y) ** 2
)
X, Y = jnp.array([1.0, 2.0, jnp.nan, 4.0]), jnp.array([0.0, 4.0, 1.0, jnp.inf])
WEIGHTS = jnp.array([1.0, 1.0, 0.0, 0.0])


def test_the_mean_is_over_the_examples_of_weight_1():
  loss = Batch(MODEL, X, Y, WEIGHTS).loss(jnp.float32(3.0))
  assert float(loss) == ((3 - 0) ** 2 + (6 - 4) ** 2) / 2
  none = Batch(MODEL, X, Y, jnp.zeros(4)).loss(jnp.float32(3.0))
  assert float(none) == 0


def test_factors_change_the_losses_but_not_their_number():
  factors = jnp.array([0.5, 3.0, 1.0, 1.0])
  loss = Batch(MODEL, X, Y, WEIGHTS, factors).loss(jnp.float32(3.0))
  assert float(loss) == (0.5 * 9 + 3 * 4) / 2
