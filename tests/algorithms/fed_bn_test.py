"""FedBN: scales and biases of norms stay with clients, also within blocks."""

import chex
import flax.linen as nn
import numpy as np
import pytest

from fesem_jax import algorithms, models
from fesem_jax.algorithms.common import personal_head
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  models_after,
  run,
  unflatten,
)
from tests.support.nights import rest_by_night


@pytest.mark.parametrize(
  ('cohorts', 'devices'),
  rest_by_night([([range(6)] * 3, 1), ([(0, 3), (3, 4), (1, 0)], 2)]),
)
def test_matches_float64_reference(cohorts, devices):
  """Biases are the client's, kernels are shared."""
  data, local = federation(), helpers.local(epochs=2, devices=devices, hidden=(5, 4))
  algorithm = algorithms.build('fed_bn', local, norm_layers=['**/bias'])
  params = algorithm.client_params(initial(algorithm, data), data, np.arange(1))
  like = reference.from_params(params, 0)
  own = [like] * len(SIZES)

  def model_of(i, x):
    pairs = zip(unflatten(x, like), own[i], strict=True)
    return [(kernel, bias) for (kernel, _), (_, bias) in pairs]

  def train(i, x, batches):
    own[i], loss = reference.local_sgd(model_of(i, x), batches(), 0.1)
    return reference.flat(own[i]), loss

  x, *_ = averaged_rounds(local, data, reference.flat(like), cohorts, train, 'uniform')

  _, found = models_after(algorithm, data, cohorts)
  for i, got in enumerate(found):
    assert_close(got, reference.flat(model_of(i, x)), rtol=1e-3)


class Block(nn.Module):
  """A dense layer with a norm beside its input."""

  @nn.compact
  def __call__(self, x):
    return x + nn.relu(nn.LayerNorm(name='norm')(nn.Dense(6, name='dense')(x)))


class Net(nn.Module):
  """A norm, and another one within a block."""

  @nn.compact
  def __call__(self, x):
    x = Block(name='block')(nn.LayerNorm(name='norm')(x))
    return nn.Dense(3, name='logits')(x)


LOCAL = helpers.local()._replace(model=models.from_flax(Net(), (6,)))


def test_norms_within_blocks_stay_with_clients():
  data, algorithm = federation(), algorithms.build('fed_bn', LOCAL)
  state, _ = run(algorithm, data)
  used = algorithm.deployed(state, data)
  shared, own = used.shared, used.own
  assert own['logits'] is shared['norm'] is shared['block']['norm'] is None
  assert own['block']['dense'] is None
  assert shared['block']['dense']['kernel'].shape == (1, 6, 6)
  for norm in (own['norm'], own['block']['norm']):
    for x in norm.values():
      assert len(np.unique(np.asarray(x), axis=0)) == len(SIZES)
  by_name = personal_head.averaging(LOCAL, ['*norm*'], 'uniform')
  chex.assert_trees_all_equal(run(by_name, data)[0], state)
  # 6 scales and biases of each norm are not sent.
  assert algorithm.traffic.model == 4 * (6 * 6 + 6 + 6 * 3 + 3)
