"""What is drawn for clients, from their ids alone."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.cohorts.sampling import (
  client_keys,
  coin,
  first_at_random,
  sample_clients,
)
from fesem_jax.core import prng_streams, sharding
from tests.support import draws, helpers


def test_padding_is_drawn_last():
  data = helpers.federation([1, 2, 3, 1]).reorder(np.arange(4), num_clients=8)
  for number in range(5):
    key, mesh = jax.random.key(number), sharding.client_mesh(2)
    cohort = sample_clients(key, data, 3, mesh)
    assert set(cohort.ids[:3].tolist()) < {0, 1, 2, 3}
    assert cohort.ids.tolist()[3:] == [8]  # An empty place, for two devices.
    assert sorted(sample_clients(key, data, 4, mesh).ids.tolist()) == [0, 1, 2, 3]


def test_a_client_has_the_same_key_and_coin_wherever_it_stands():
  data, key = helpers.federation([1] * 40), jax.random.key(3)
  order = np.random.default_rng(0).permutation(40)
  turned = data.reorder(order)
  ids = jnp.arange(40)
  for i, k in enumerate(client_keys(key, turned, ids)):
    assert k == draws.client_key(key, data, order[i])
  tosses = coin(key, turned, ids, 0.3, prng_streams.DROPOUT)
  want = [draws.drops_out(key, data, i, 0.3) for i in order]
  np.testing.assert_array_equal(tosses, want)
  assert 0 < sum(want) < 40
  assert not coin(key, data, ids, 0.0, prng_streams.DROPOUT).any()


def test_a_random_order_holds_everyone_once_and_who_does_not_exist_last():
  exists = jnp.arange(20) % 4 > 0
  found = set()
  for number in range(5):
    keys = jax.random.split(jax.random.key(number), 20)
    order = np.asarray(first_at_random(keys, exists, 25))
    np.testing.assert_array_equal(first_at_random(keys, exists, 7), order[:7])
    assert sorted(order) == list(range(20))
    np.testing.assert_array_equal(np.asarray(exists)[order], np.arange(20) < 15)
    found.add(tuple(order))
  assert len(found) == 5


def test_clients_with_a_single_example_are_drawn_like_others():
  data, mesh = helpers.federation([1] * 9), sharding.client_mesh(1)
  for number in range(3):
    key = jax.random.key(number)
    found = sample_clients(key, data, 4, mesh)
    assert found.ids.tolist() == draws.sample(key, data, 4)
    assert not found.everyone
