"""FedBN: scales and biases of norms stay with clients, also within blocks."""

import chex
import flax.linen as nn
import numpy as np

from fesem_jax import algorithms, models
from fesem_jax.algorithms.common import personal_head
from tests.support import helpers
from tests.support.methods import (
  SIZES,
  federation,
  run,
)


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
  shared, own = used.shared, used.personal
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
