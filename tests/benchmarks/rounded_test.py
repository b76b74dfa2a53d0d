"""The products of an accelerator, emulated: against factors rounded by NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from benchmarks import rounded
from fesem_jax import algorithms
from fesem_jax.core import sharding
from tests.support import helpers

SHAPE = (8, 8)


def bfloat16(x):
  return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def multiplied(precision, a, b):
  multiply = rounded.function(lambda a, b: jnp.matmul(a, b, precision=precision))
  return np.asarray(jax.jit(multiply)(a, b), np.float64)


def test_one_pass_rounds_each_factor_to_eight_bits():
  a, b = normal(20, 30), normal(30, 40, seed=1)
  np.testing.assert_allclose(
    multiplied('default', a, b), bfloat16(a) @ bfloat16(b), rtol=1e-5, atol=1e-5
  )


def test_errors_are_those_of_8_16_and_24_bits():
  a, b = normal(20, 1), normal(1, 40, seed=1)
  exact = np.asarray(a, np.float64) @ b
  errors = {
    precision: np.abs(multiplied(precision, a, b) / exact - 1).max()
    for precision in ('default', 'high', 'highest')
  }
  assert 2.0**-10 < errors['default'] <= 2.0**-7
  assert 2.0**-19 < errors['high'] <= 2.0**-15
  assert errors['highest'] <= 2.0**-24


def test_convolutions_and_both_gradients_round_their_factors():
  x, kernel, dy = (
    normal(2, 6, 6, 3),
    normal(3, 3, 3, 4, seed=1),
    normal(2, 4, 4, 4, seed=2),
  )

  def convolve(x, kernel):
    return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )

  def gradients(x, kernel, dy):
    out, back = jax.vjp(convolve, x, kernel)
    return out, *back(dy)

  def with_precision(*args):
    with jax.default_matmul_precision('default'):
      return gradients(*args)

  got = rounded.function(with_precision)(x, kernel, dy)
  factors = [bfloat16(z).astype(np.float32) for z in (x, kernel, dy)]
  for a, b, exact in zip(
    got, gradients(*factors), gradients(x, kernel, dy), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert np.abs(a - exact).max() > 1e-3


def test_a_local_step_rounds_forward_and_backward():
  """Logistic regression, one step of one client, by hand."""
  data = helpers.federation([4])
  local = helpers.local(chunk=1, hidden=(), model='logistic')
  algorithm = algorithms.build('fed_avg', local._replace(precision='default'))
  state = algorithm.init(jax.random.key(0), data)
  args = data, helpers.everyone(data), jax.random.key(1)
  after, _ = jax.jit(rounded.algorithm(algorithm).step)(state, *args)
  exact, _ = jax.jit(algorithm.step)(state, *args)
  x, y = data.client(0)
  (kernel, bias) = (
    np.asarray(state.params['logits'][k][0]) for k in ('kernel', 'bias')
  )
  logits = bfloat16(x) @ bfloat16(kernel) + bias
  p = np.exp(logits - logits.max(axis=1, keepdims=True))
  d = (p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]) / len(y)
  want = kernel - 0.1 * bfloat16(x).T @ bfloat16(d)
  np.testing.assert_allclose(
    after.params['logits']['kernel'][0], want, rtol=0, atol=2e-6
  )
  assert np.abs(exact.params['logits']['kernel'][0] - want).max() > 2e-5


def two_rounds(name, options, chunk, precision, emulated):
  data = helpers.federation([7, 4, 9], groups=[0, 1, 0], shape=SHAPE)
  local = helpers.local(chunk=chunk, shape=SHAPE, model='small_cnn')
  algorithm = algorithms.build(name, local._replace(precision=precision), **options)
  if emulated:
    algorithm = rounded.algorithm(algorithm)
  state = jax.jit(algorithm.init)(jax.random.key(0), data)
  step = jax.jit(algorithm.step)
  for r in (1, 2):
    state, _ = step(state, data, helpers.everyone(data), jax.random.key(r))
  used = algorithm.deployed(state, data).shared
  return np.concatenate([np.ravel(x) for x in jax.tree.leaves(used)])


@pytest.mark.nightly
@pytest.mark.parametrize(
  ('name', 'chunk'),
  [('fed_avg', 1), pytest.param('fesem', 3, marks=pytest.mark.nightly),
   pytest.param('hypo_cluster', 2, marks=pytest.mark.nightly)],
)  # fmt: skip
def test_only_products_change(name, chunk):
  """With the highest precision, an emulated method is the method."""
  options = {
    'fed_avg': {},
    'fesem': {'num_clusters': 2},
    'hypo_cluster': {'num_clusters': 2, 'init_restarts': 2, 'init_rounds': 0},
  }[name]
  exact = two_rounds(name, options, chunk, 'highest', emulated=False)
  same = two_rounds(name, options, chunk, 'highest', emulated=True)
  np.testing.assert_allclose(same, exact, rtol=1e-4, atol=1e-5)
  if name == 'fed_avg':
    high, default = (
      np.abs(two_rounds(name, options, chunk, p, emulated=True) - exact).max()
      for p in ('high', 'default')
    )
    assert np.abs(same - exact).max() < high < default / 8


def test_a_program_of_several_devices_is_refused():
  def summed(x):
    return jax.lax.psum(x @ x.T, 'clients')

  mesh = sharding.client_mesh(2)
  split = PartitionSpec('clients')
  each = jax.shard_map(summed, mesh=mesh, in_specs=split, out_specs=PartitionSpec())
  with pytest.raises(ValueError, match='shard_map runs products of its own'):
    rounded.function(each)(normal(2, 3))
