"""Sparse and quantized changes against NumPy in float64, error feedback, and bytes."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fesem_jax import algorithms, chained, simulate
from fesem_jax.algorithms.wrappers import with_client_memory
from fesem_jax.core import traffic
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.traffic import Drawn
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.compression import compression
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.utils.errors import UserError
from tests.support import helpers, random_federations
from tests.support.methods import assert_close, matrix

SIZES = [6, 3, 9, 5, 8, 4]
KEY = jax.random.key(3)
RNG = np.random.default_rng(0)
START = {'a': jnp.asarray(RNG.normal(size=(30, 20)), jnp.float32), 'b': jnp.zeros(7)}
CHANGE = jax.tree.map(
  lambda x: jnp.asarray(RNG.standard_t(3, size=x.shape), jnp.float32), START
)
P = 607


def vector(tree):
  return np.concatenate([np.asarray(x, np.float64).ravel() for x in tree.values()])


def top(change, k):
  result = np.zeros_like(change)
  places = np.argsort(-np.abs(change), kind='stable')[:k]
  result[places] = change[places]
  return result


KINDS = [f'{kind}({n})' for kind in ('top_k', 'random_k') for n in (1e-4, 0.1, 1)]
KINDS += [f'quantize({bits})' for bits in (2, 5, 16)]


@random_federations.tried(20)
@hypothesis.given(st.sampled_from(KINDS), st.integers(0, 99))
def test_what_is_sent_is_as_near_as_its_bytes_allow(text, seed):
  change = np.random.default_rng(seed).standard_t(3, P).astype(np.float32)
  zero, key = jax.tree.map(np.zeros_like, START), jax.random.key(seed)
  trained = {'a': change[:600].reshape(30, 20), 'b': change[600:]}
  sends, (kind, number) = compression(text), text.rstrip(')').split('(')
  result = vector(sends.transform(key, zero, trained))
  if kind == 'quantize':
    most = np.abs(np.pad(change, (0, 1024 - P)).reshape(2, 512)).max(axis=1)
    width = np.repeat(most, 512)[:P] / (2 ** (int(number) - 1) - 1)
    assert (np.abs(result - change) <= width * (1 + 1e-4) + 1e-6).all()
    size = np.ceil(int(number) * P / 8) + 8
  else:
    count = max(1, int(np.ceil(float(number) * P)))
    assert (result != 0).sum() == count
    expected = np.where(result != 0, change, 0)
    assert_close(result, top(change, count) if kind == 'top_k' else expected)
    size = 8 * count if kind == 'top_k' else 4 * count + 8
  assert sends.num_bytes(P) == size
  unchanged = sends.transform(key, trained, trained)
  np.testing.assert_array_equal(vector(unchanged), vector(trained))


def test_random_changes_are_right_on_average():
  keys = jax.random.split(KEY, 400)
  many = jax.vmap(
    lambda key: compression('random_k(0.25, error_feedback=False)').transform(
      key, jax.tree.map(jnp.zeros_like, START), CHANGE
    )
  )(keys)
  mean = np.concatenate([np.asarray(x).mean(axis=0).ravel() for x in many.values()])
  change_values = vector(CHANGE)  # Of P / k times a change, one time in P / k.
  bound = 5 * np.abs(change_values) * np.sqrt((P / 152 - 1) / len(keys)) + 1e-6
  assert (np.abs(mean - change_values) <= bound).all()


@pytest.mark.parametrize('bits', [2, 4, 8, 16])
def test_changes_are_rounded_at_random_to_levels(bits):
  change, key = vector(CHANGE), jax.random.key(5)
  zero = jax.tree.map(jnp.zeros_like, START)
  transform = compression(f'quantize({bits})').transform
  result = vector(transform(key, zero, CHANGE))
  buckets = np.pad(change, (0, 1024 - P)).reshape(2, 512)
  most = np.abs(buckets).max(axis=1, keepdims=True)
  width = most / (2 ** (bits - 1) - 1)
  draws = np.asarray(jax.random.uniform(key, (2, 512)), np.float64)
  expected = (np.floor(buckets / width + draws) * width).ravel()[:P]
  # Single precision may round a draw on the border of two levels to the other.
  assert (np.abs(result - expected) < 1e-4).mean() > 0.99
  many = jax.vmap(lambda key: transform(key, zero, CHANGE))(jax.random.split(key, 400))
  mean = np.concatenate([np.asarray(x).mean(axis=0).ravel() for x in many.values()])
  assert np.abs(mean - change).max() < 5 * width.max() / 2 / np.sqrt(400)
  few = jax.tree.map(lambda x: x.at[:].set(0).at[0].set(1.0), zero)
  sent_of_few = transform(key, zero, few)  # Zeros stay zeros.
  jax.tree.map(np.testing.assert_array_equal, sent_of_few, few)


def test_bytes_are_those_of_what_is_sent():
  local, sends = helpers.local(), compression('top_k(0.1)')
  size = traffic.bytes_of_model(local)
  each = sends.num_bytes(size // 4)
  drawn = Drawn(1, np.arange(3), everyone=False)
  cases = [
    (traffic.one_model(local), size, each),
    (algorithms.build('fed_drift', local).traffic, size, each),
    (traffic.same_for_all(0, 0), 0, 0),
  ]
  for of, down, up in cases:
    messages = traffic.as_sent(of, sends).round_costs(None, drawn)
    assert (messages.down, messages.up) == (down, up)
  start = traffic.after_clustering(traffic.one_model(local), losses=3)
  assert traffic.as_sent(start, sends).start_bytes(5) == (5 * size, 5 * (each + 12))
  assert traffic.as_sent(start, None) is start
  # What is sent beside a model is not compressed, even if it is more than a model.
  many = algorithms.build('fed_drift', local, check_every=1).traffic
  later = Drawn(2, np.arange(3), everyone=False)
  sent_with_losses = traffic.as_sent(many, sends).round_costs(size, later).up
  assert sent_with_losses == each + 4 * size


def test_bytes_of_methods_are_those_of_each_model_that_is_sent():
  local = helpers.local()._replace(sends=compression('top_k(0.01)'))
  each = traffic.bytes_sent(local)
  drawn = Drawn(1, np.arange(3), everyone=False)

  def of(name, **options):
    made = algorithms.build(name, local, num_clusters=2, **options)
    return traffic.as_sent(made.traffic, local.sends)

  assert of('fed_em').round_costs(None, drawn).up == 2 * each
  assert of('fed_rc').round_costs(3, drawn).up == 2 * (each + 3 * 4)
  assert of('fesem').start_bytes(10)[1] == pytest.approx(10 * each)
  drawn_start = of('hypo_cluster', init_restarts=5, init_rounds=2, init_clients=3)
  expected = 5 * 3 * (2 * (each + 4) + 4)
  assert drawn_start.start_bytes(7)[1] == pytest.approx(expected)


def local_of(text='top_k(0.2)', **layout):
  local = helpers.local(model='logistic', **layout)
  return local._replace(sends=compression(text))


def rounds(algorithm, data, count=3, cohort=None):
  state = jax.jit(algorithm.init)(jax.random.key(0), data)
  step, states = jax.jit(algorithm.step), []
  for r in range(count):
    key = jax.random.fold_in(KEY, r)
    state, _ = step(jax.device_get(state), data, cohort or helpers.everyone(data), key)
    states.append(state)
  return states


@pytest.mark.parametrize('private', [False, True])
def test_what_is_not_sent_is_sent_later(private):
  """v = clip(d) + noise + e, C(v) is sent, e = v - C(v); without privacy v = d + e."""
  data, clip, std = helpers.federation(SIZES), 0.05, 0.03
  plain, sends = (
    helpers.local(model='logistic', batch_size=0),
    compression('top_k(0.2)'),
  )
  noise_alone = differential_privacy(clip, std / clip, where='client', delta=0)
  local = plain._replace(sends=chained(noise_alone, sends) if private else sends)
  made = with_client_memory(algorithms.build('fed_avg', local, weighting='uniform'))
  states = rounds(made, data)
  assert made.local.sends.residual is False
  start = jax.tree.map(lambda x: x[None], plain.model.init(jax.random.key(0)))
  size = sum(x.size for x in jax.tree.leaves(start))
  left, k = np.zeros((len(SIZES), size)), int(np.ceil(0.2 * size))
  for r, state in enumerate(states):
    key, everyone = jax.random.fold_in(KEY, r), helpers.everyone(data)
    trained = [
      matrix(train_cohort(each, ClientModels(start), data, everyone, key).params)
      for each in (plain, plain._replace(sends=chained(noise_alone)))
    ]
    change = trained[0] - matrix(start)
    if private:
      lengths = np.linalg.norm(change, axis=1, keepdims=True)
      change *= np.minimum(1, clip / lengths)
      noise = trained[1] - matrix(start) - change
      assert noise.std() == pytest.approx(std, rel=0.3)  # Of a few draws.
      change += noise
    whole = change + left
    small = np.stack([top(row, k) for row in whole])
    left = whole - small
    assert_close(matrix(state.residuals), left, atol=1e-6)
    mean = matrix(start)[0] + small.mean(axis=0)
    assert_close(matrix(state.method.params)[0], mean, atol=1e-6)
    start = state.method.params


def test_several_models_of_a_client_have_no_error_feedback():
  data = helpers.federation(SIZES)
  made = algorithms.build('fed_em', local_of(), num_clusters=2)
  with pytest.raises(UserError, match='error_feedback=False'):
    simulate(made, data, data, rounds=1)
