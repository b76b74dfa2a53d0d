"""FedPer, FedRep, FedBABU and LG-FedAvg against references that train by layers."""

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers
from tests.support.methods import (
  SIZES,
  federation,
  initial,
  run,
)


def test_heads_train_in_epochs_even_where_bodies_train_in_steps():
  data, local = federation(), helpers.local(steps=5)
  algorithm = algorithms.build('fed_rep', local, head_epochs=3)
  _, infos = run(algorithm, data, rounds=1)
  assert int(infos[0].steps) == sum(3 * -(-size // 4) + 5 for size in SIZES)


def test_the_head_of_fed_babu_stays_fixed_under_noise():
  sends = differential_privacy(0.1, 2.0, where='client', delta=0)
  local = helpers.local()._replace(sends=sends)
  algorithm = algorithms.build('fed_babu', local)
  data = federation()
  before, after = initial(algorithm, data), run(algorithm, data, rounds=1)[0]
  moved = jax.tree.map(lambda a, b: np.abs(b - a).max(), before.params, after.params)
  heads = moved.pop('logits')
  assert max(jax.tree.leaves(heads)) == 0 < min(jax.tree.leaves(moved))
