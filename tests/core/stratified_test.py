"""Drawing of each device's clients alike, at the limits."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import sharding, stratified
from fesem_jax.core.types import Cohort

DRAW = np.linspace(0, 1, 8)


@pytest.mark.parametrize('only', [0, 3, 7])
def test_a_client_that_exists_alone_is_drawn(only):
  exists = np.arange(8) == only
  for count in (1, 2):
    ids = stratified.evenly(count, DRAW, exists, 0, 1, 2)
    assert ids.tolist() == [only, 8]


def test_where_no_client_exists_all_places_are_empty():
  ids = stratified.evenly(2, DRAW, np.zeros(8, bool), 0, 2, 2)
  assert ids.tolist() == [8] * 4
  assert stratified._part(3, np.int32(0), np.int32(0), 0) == 0


def test_the_start_of_systematic_sampling_is_any_client():
  # Two clients of two shards: the start alone decides which of them is drawn.
  exists, draw = jnp.arange(8) % 4 == 1, jnp.asarray(DRAW, jnp.float32)
  mesh = types.SimpleNamespace(size=1)

  @jax.jit
  @jax.vmap
  def drawn(key):
    return stratified.drawn_on_devices(key, 1, draw, exists, 1, mesh)[0]

  found = drawn(jax.random.split(jax.random.key(0), 20))
  assert set(found.tolist()) == {1, 5}


def test_places_of_a_sample_are_as_few_as_the_smallest_cohort_allows():
  info = types.SimpleNamespace(names=np.arange(20))
  data = types.SimpleNamespace(info=info, num_clients=24)
  # Eight places of one of two devices are needed from 12 of 20 clients on: of 11,
  # 11 * 12 / 20 = 6.6 are on one of them, of 12 they are 7.2.
  of = Cohort(np.zeros(16, np.int32), everyone=False)
  places = {
    count: stratified.places_of_sample(count, data, of, sharding.client_mesh(2))
    for count in (1, 8, 9, 11)
  }
  assert places == {1: 1, 8: 6, 9: 6, 11: 8}
