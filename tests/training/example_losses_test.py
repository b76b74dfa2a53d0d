"""Shares and targets of single examples; client_losses_test has their losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.training.by_batches import EVALUATION_BATCH, evaluation_width
from fesem_jax.training.example_losses import example_targets, shares_of_least_loss
from tests.support import helpers, reference

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
  wanted = np.zeros((4, 3, 2))
  wanted[0, :2], wanted[2], wanted[3, 0] = y[3:5], y[:3], y[5]
  np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
  ('most', 'width'), [(1, 1), (128, 128), (129, 65), (200, 100), (257, 86), (300, 100)]
)
def test_batches_of_the_largest_client_are_of_one_size(most, width):
  assert evaluation_width(most) == width
  assert -(-most // width) == -(-most // EVALUATION_BATCH)
