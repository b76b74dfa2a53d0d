"""Scaled models and backdoors of bad clients, and how often a backdoor succeeds."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, simulate
from fesem_jax.analysis import tables
from fesem_jax.core.federated_data import Corruption
from fesem_jax.data import backdoor
from fesem_jax.data.corruption import corrupted
from fesem_jax.training.sent_models import as_sent
from fesem_jax.utils.errors import UserError
from tests.support import helpers

IMAGE = (8, 8, 1)
SIZES = [8, 12, 10, 6, 9]
BOTH = 'backdoor:2+replacement:4'


def data_of(seed=0, shape=IMAGE):
  return helpers.federation(SIZES, seed, shape=shape)


def test_a_replacement_is_the_change_times_its_scale():
  start, end = {'w': jnp.zeros(4) + 1}, {'w': jnp.arange(4.0)}
  bad = Corruption(np.array([True, False]), 'backdoor:0+replacement:2.5')
  data = types.SimpleNamespace(corruption=bad)

  def sent(client):
    return as_sent(data, jnp.int32(client), jax.random.key(0), start, end)['w']

  np.testing.assert_allclose(sent(0), 1 + 2.5 * (np.arange(4.0) - 1))
  np.testing.assert_array_equal(sent(1), end['w'])


def test_bad_clients_mark_half_of_their_examples():
  plain = helpers.federation([400, 300, 300], shape=IMAGE)
  found = corrupted(plain, 'backdoor:2', 0.34, seed=1)
  bad = np.repeat(found.corruption.bad, np.diff(found.offsets))
  value = plain.x.max()
  marked = (np.asarray(found.x)[:, 6:, 6:] == value).all(axis=(1, 2, 3))
  assert not marked[~bad].any()
  assert marked[bad].mean() == pytest.approx(0.5, abs=0.1)
  np.testing.assert_array_equal(found.y[marked], 2)
  np.testing.assert_array_equal(found.y[~marked], plain.y[~marked])
  rest = np.array(plain.x)
  rest[marked, 6:, 6:] = value
  np.testing.assert_array_equal(found.x, rest)
  assert found.corruption.backdoor == 2
  assert not found.corruption.of_models
  again = corrupted(plain, 'backdoor:2', 0.34, seed=1)
  np.testing.assert_array_equal(again.x, found.x)


def test_the_pattern_of_vectors_are_their_last_features():
  assert backdoor.corner((28, 28, 1)) == (slice(25, 28), slice(25, 28))
  assert backdoor.corner((24,)) == (slice(21, 24),)
  np.testing.assert_array_equal(backdoor.mask((4,)), [False, False, False, True])
  flat = backdoor.mask((3, 3), 11)
  np.testing.assert_array_equal(np.flatnonzero(flat), [4, 5, 7, 8])


@pytest.mark.parametrize(
  ('corrupt', 'message'),
  [('replacement', 'must be one of'), ('replacement:0', 'must be one of'),
   ('replacement:inf', 'must be one of'), ('backdoor:x', 'must be one of'),
   ('sign_flip:2', 'must be one of'), ('', 'corrupt'),
   ('backdoor:3', 'class in 0..2')],
)  # fmt: skip
def test_bad_values_are_refused(corrupt, message):
  with pytest.raises(UserError, match=message):
    corrupted(data_of(), corrupt, 0.4)


def test_the_success_of_a_backdoor_is_that_of_the_models_on_marked_examples():
  train, test = corrupted(data_of(), BOTH, 0.4), data_of(1)
  local = helpers.local(model='logistic', shape=IMAGE, devices=2)
  made = algorithms.build('fed_avg', local)
  result = simulate(made, train, test, rounds=2)
  bad = train.corruption.bad
  layer = jax.tree.map(lambda x: np.asarray(x[0], np.float64), result.state.params)
  kernel, bias = layer['logits']['kernel'], layer['logits']['bias']
  rows = ~np.repeat(bad, np.diff(test.offsets)) & (test.y != 2)
  x = np.array(test.x, np.float64)[rows]
  x[:, 6:, 6:] = np.asarray(train.x).max()
  guess = (x.reshape(len(x), -1) @ kernel + bias).argmax(axis=1)
  wanted = (guess == 2).mean()
  assert result.summary['backdoor_success'] == pytest.approx(wanted)
  assert result.history[-1]['backdoor_success'] == pytest.approx(wanted)
  table = tables.over_seeds({'fed_avg': [result.summary]})
  assert table[0]['backdoor'] == pytest.approx(100 * wanted)
  assert 'backdoor %' in tables.scores(table).as_markdown()
