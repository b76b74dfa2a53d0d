"""What is drawn for clients, from their ids alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.sampling import coin, first_at_random, sample_clients
from fesem_jax.utils.errors import UserError
from tests.support import draws, helpers
from tests.support.runs import simulate


def chosen_only(alpha, ids, seen):
  """Averages by weights in the user's order, of clients with chosen ids."""

  def method(local):
    def step(w, data, cohort, key):
      mine = fj.cohort_of(ids, data, local.mesh, cohort.round)
      trained = fj.train_cohort(local, fj.ClientModels(shared=w), data, mine, key)
      who = data.client_ids[trained.ids]
      jax.debug.callback(lambda *a: seen.append(a), who, trained.sizes, mine.round)
      weights = alpha[who] * trained.weights('uniform')
      params = jax.tree.map(
        lambda p: jnp.tensordot(weights, p, axes=1)[None], trained.params
      )
      return params, trained.info()

    return fj.Algorithm(
      local, lambda key, data: fj.tree.expand(local.model.init(key)), step,
      lambda w, data: fj.ClientModels(shared=w),
    )  # fmt: skip

  return method


@pytest.mark.parametrize('placement', ['replicated', 'sharded'])
def test_weights_and_cohorts_are_of_the_clients_that_the_user_means(placement):
  # Client 0 has labels 1 only, and is neither the largest nor the smallest.
  x, y = np.eye(95, 5, dtype='f4'), np.repeat([1, 0, 1, 0, 0], [10, 30, 5, 25, 25])
  info = fj.ClientInfo(np.array(['Ann', 'Bob', 'Cid', 'Dan', 'Eve']))
  data = fj.FederatedData.from_arrays(x, y, [10, 30, 5, 25, 25], info=info)
  model = fj.models.build('logistic', (5,), 2)
  local = fj.local_training(model, optax.sgd(1.0))
  assert local.mesh.size == 2
  seen, ids = [], np.array([0, 3, 1])
  made = chosen_only(jnp.array([1.0, 0, 0, 0, 0]), ids, seen)(local)
  result = simulate(made, data, data, rounds=2, data_placement=placement)
  np.testing.assert_array_equal(result.clients.deployed_accuracy, [1, 0, 1, 0, 0])
  jax.effects_barrier()
  for number, (who, sizes, before) in enumerate(seen):
    in_data = np.asarray(sizes) > 0
    actual = dict(
      zip(np.asarray(who)[in_data], np.asarray(sizes)[in_data], strict=True)
    )
    assert actual == {0: 10, 3: 25, 1: 30}
    assert int(before) == number
    assert len(who) == (4 if placement == 'replicated' else 6)


def test_an_unknown_id_is_an_empty_place():
  data = helpers.federation([1, 2, 3, 1]).reorder(np.array([2, 0, 3]), num_clients=4)
  cohort = fj.cohort_of(np.array([3, 1, 0]), data, sharding.client_mesh(2))
  assert cohort.ids.tolist() == [2, 4, 1, 4]
  assert not cohort.everyone
  with pytest.raises(UserError, match='client_ids'):
    fj.cohort_of([1, 0, 1], data, sharding.client_mesh(2))


def test_a_cohort_that_devices_cannot_divide_is_refused():
  data, local = helpers.federation([1, 2, 3, 1]), helpers.local()
  local = local._replace(mesh=sharding.client_mesh(2))
  cohort = fj.Cohort(jnp.arange(3), everyone=False)
  start = fj.ClientModels(shared=fj.tree.expand(helpers.first_model(local)))
  with pytest.raises(UserError, match='cohort'):
    fj.train_cohort(local, start, data, cohort, jax.random.key(0))
  with pytest.raises(UserError, match='cohort'):
    fj.cohort_losses(local, start.shared, data, cohort)


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
  for i, k in enumerate(turned.keys_of(key, ids)):
    assert k == draws.client_key(key, data, order[i])
  tosses = coin(key, turned, ids, 0.3, prng_streams.DROPOUT)
  expected = [draws.drops_out(key, data, i, 0.3) for i in order]
  np.testing.assert_array_equal(tosses, expected)
  assert 0 < sum(expected) < 40
  assert not coin(key, data, ids, 0.0, prng_streams.DROPOUT).any()


def test_a_random_order_holds_everyone_once_and_who_does_not_exist_last():
  exists = jnp.arange(20) % 4 > 0
  result = set()
  for number in range(5):
    keys = jax.random.split(jax.random.key(number), 20)
    order = np.asarray(first_at_random(keys, exists, 25))
    np.testing.assert_array_equal(first_at_random(keys, exists, 7), order[:7])
    assert sorted(order) == list(range(20))
    np.testing.assert_array_equal(np.asarray(exists)[order], np.arange(20) < 15)
    result.add(tuple(order))
  assert len(result) == 5
