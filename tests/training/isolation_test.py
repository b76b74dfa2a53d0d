"""No client's values reach another client's results."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms, models
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from tests.support import helpers
from tests.support.methods import initial, matrix
from tests.support.nights import rest_by_night

SIZES = [3, 5, 2, 4]


def spoiled(data, clients, value):
  """The data with other features on some clients."""
  x = np.asarray(data.x).copy()
  for i in clients:
    x[data.offsets[i] : data.offsets[i + 1]] = value
  return FederatedData(**{**vars(data), 'x': x})


@pytest.mark.parametrize('value', [3e38, np.nan])
@pytest.mark.parametrize('batch_size', rest_by_night([2, 0]))
def test_a_client_alone_does_not_see_the_others(batch_size, value):
  data = helpers.federation(SIZES)
  local = helpers.local(batch_size=batch_size, epochs=2)
  algorithm = algorithms.build('fed_avg', local)
  state, step = initial(algorithm, data), jax.jit(algorithm.step)
  for client in range(len(SIZES)):
    cohort = Cohort(np.array([client, len(SIZES)], np.int32), everyone=False)
    others = [i for i in range(len(SIZES)) if i != client]
    after, info = step(state, data, cohort, jax.random.key(1))
    other, other_info = step(
      state, spoiled(data, others, value), cohort, jax.random.key(1)
    )
    assert int(other_info.failed) == 0
    np.testing.assert_array_equal(matrix(after.params), matrix(other.params))
    assert info.train_loss == other_info.train_loss


# Those of tokens: tests/models/sequences_test.py. ResNet-18 and 20 take long to
# compile, and have the blocks of ResNet-8.
LONG = {'resnet18', 'resnet18_bn', 'resnet20', 'resnet20_bn'}


@pytest.mark.parametrize(
  'name', rest_by_night(sorted({*models.NAMES} - {*models.OF_TOKENS, *LONG}), by_day=4)
)
def test_own_models_do_not_mix_the_examples_of_a_batch(name):
  shape = (12, 12) if name in ('logistic', 'mlp') else (16, 16, 3)
  model = models.build(name, shape, 4, hidden=(8,))
  params = jax.jit(model.init)(jax.random.key(0))
  x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)

  def first(x):
    return (model.apply(params, x)[0] ** 2).sum()

  gradient = np.asarray(jax.jit(jax.grad(first))(x))
  assert np.abs(gradient[0]).max() > 0
  np.testing.assert_array_equal(gradient[1:], 0)
