"""No client's values reach another client's results."""

import jax
import numpy as np
import pytest

from fesem_jax import models
from tests.support.nights import rest_by_night

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
