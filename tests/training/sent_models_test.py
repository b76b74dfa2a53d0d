"""Bad clients turn their change around, or send noise as long as it."""

import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.federated_data import Attack
from fesem_jax.data import attacks
from fesem_jax.training.one_client import Client, LocalModel

IDS = np.array([2, 0, 3, 4])  # Of four clients; the last place is empty.
BAD = np.array([True, False, True, False])
KEYS = jax.random.split(jax.random.key(0), 4)

HONEST = types.SimpleNamespace(sends=None, unsent=())  # Local training as it is.


def data_of(kind, bad=BAD):
  return types.SimpleNamespace(attack=kind and Attack(bad, attacks.parse(kind)))


def as_sent(data, ids, received, ends, keys, layers=None):
  """What clients send that `received` models [4, ...], or one for all [1, ...]."""

  def send(id, key, received, end):
    one = jnp.int32(1)
    client = Client(HONEST, data, id, one, one, key, None)
    model = LocalModel(end, None, None, None)
    return client.send(model, received, layers)

  count = len(ids)
  received = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (count, *x.shape[1:])), received
  )
  return jax.vmap(send)(jnp.asarray(ids), keys, received, ends)


def stack(seed, count, width=2):
  """[count, ...] models of two layers."""
  rng = np.random.default_rng(seed)
  return {
    'a': {'w': jnp.asarray(rng.normal(size=(count, 3, width)), jnp.float32)},
    'b': {'w': jnp.asarray(rng.normal(size=(count, width)), jnp.float32)},
  }


START, ENDS = stack(0, 1), stack(1, 4)


def assert_turned(result, layers):
  """Clients 2 and 0 of the data are bad, the first two places."""
  for name in ('a', 'b'):
    start, end = START[name]['w'], ENDS[name]['w']
    expected = np.array(end)
    if name in layers:
      expected[:2] = (2 * start - end)[:2]
    np.testing.assert_allclose(result[name]['w'], expected, rtol=1e-5, atol=1e-6)


def test_a_sign_flip_goes_as_far_to_the_other_side():
  result = as_sent(data_of('sign_flip'), IDS, START, ENDS, KEYS)
  assert_turned(result, ('a', 'b'))
  assert_turned(as_sent(data_of('sign_flip'), IDS, START, ENDS, KEYS, ('b',)), ('b',))


def test_layers_that_the_server_had_not_sent_are_sent_by_no_client():
  received = {'a': START['a'], 'b': None}
  result = as_sent(data_of('sign_flip'), IDS, received, ENDS, KEYS)
  assert_turned(result, ('a',))
  # Of layers that do not learn either, nothing is left.
  for model, layers in ((received, ('b',)), (None, None)):
    result = as_sent(data_of('sign_flip'), IDS, model, ENDS, KEYS, layers)
    chex.assert_trees_all_equal(result, ENDS)


def test_each_client_lies_about_the_model_that_it_received():
  far = jax.tree.map(lambda x: x + 5, START)
  received = jax.tree.map(lambda a, b: jnp.concatenate([a, a, b, b]), START, far)
  result = as_sent(data_of('sign_flip'), IDS, received, ENDS, KEYS)
  assert_turned(result, ('a', 'b'))


@pytest.mark.parametrize('kind', [None, 'label_flip'])
def test_others_send_what_they_trained(kind):
  chex.assert_trees_all_equal(as_sent(data_of(kind), IDS, START, ENDS, KEYS), ENDS)


def test_a_lie_beyond_float32_is_not_told():
  far = jax.tree.map(lambda x: x.at[0].set(-3e38), ENDS)
  start = jax.tree.map(lambda x: x + 1e38, START)
  result = as_sent(data_of('sign_flip'), IDS, start, far, KEYS)
  np.testing.assert_array_equal(result['a']['w'][0], far['a']['w'][0])
  assert (np.asarray(result['a']['w'][1]) > 1e38).all()


def test_an_empty_place_is_no_bad_client():
  data = data_of('sign_flip', np.array([True, False, True, True]))
  result = as_sent(data, IDS, START, ENDS, KEYS)['b']['w']
  expected = np.array(2 * START['b']['w'] - ENDS['b']['w'])
  expected[3] = ENDS['b']['w'][3]
  np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_noise_is_drawn_from_the_key_of_each_client():
  result = as_sent(data_of('noise'), IDS, START, ENDS, KEYS)
  for place in (0, 1):
    change = np.concatenate(
      [np.ravel(ENDS[n]['w'][place] - START[n]['w'][0]) for n in 'ab']
    )
    key = jax.random.fold_in(KEYS[place], 2**31 - 13)
    for name, layer_key in zip('ab', jax.random.split(key, 2), strict=True):
      start = START[name]['w'][0]
      draw = jax.random.normal(layer_key, start.shape)
      expected = start + np.linalg.norm(change) / np.sqrt(8) * draw
      np.testing.assert_allclose(
        result[name]['w'][place], expected, rtol=1e-4, atol=1e-6
      )
