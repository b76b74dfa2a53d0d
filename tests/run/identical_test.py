"""Bits of runs on one device and on two, with `setup_devices(identical=True)`."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.core.local_training import Machine, local_training
from fesem_jax.run.simulation import simulate
from fesem_jax.utils.errors import UserError
from tests.support import helpers


@pytest.mark.parametrize('identical', [True, False])
@pytest.mark.parametrize('method', ['fed_avg', 'fesem'])
def test_devices_have_the_same_bits(method, identical, monkeypatch):
  monkeypatch.setattr(sharding, 'is_identical', identical)
  data = helpers.federation([9, 4, 12, 7, 5, 8, 3, 11, 6, 10, 2, 9, 13])
  options = {'num_clusters': 2} if method == 'fesem' else {}

  def last_state(devices):
    local = helpers.local(devices=devices, hidden=(40,))
    result = simulate(
      algorithms.build(method, local, **options), data, data, rounds=3,
      clients_per_round=11, finetune_epochs=0, progress=False, seed=1,
    )  # fmt: skip
    return jax.tree.leaves(jax.device_get(result.state))

  one, two = last_state(1), last_state(2)
  assert all(map(np.array_equal, one, two)) == identical


def test_chunks_cannot_be_chosen(monkeypatch):
  monkeypatch.setattr(sharding, 'is_identical', True)
  local, machine = helpers.local(), Machine(clients_per_chunk=2)
  with pytest.raises(UserError, match='clients_per_chunk'):
    local_training(local.model, local.optimizer, machine=machine)
