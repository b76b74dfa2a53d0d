import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fesem_jax import models
from fesem_jax.models import conv
from tests.support.nights import rest_by_night


def plain(x, kernel, strides, padding):
  return jax.lax.conv_general_dilated(
    x, kernel, strides, padding, dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


CASES = [
  ((9, 9), (3, 3), (1, 1), 'SAME'), ((9, 8), (5, 3), (1, 1), 'VALID'),
  ((8, 8), (4, 2), (1, 1), 'SAME'), ((9, 10), (3, 3), (2, 2), 'SAME'),
  ((10, 9), (3, 2), (2, 3), 'VALID'), ((7, 7), (3, 3), (1, 2), ((2, 0), (1, 3))),
]  # fmt: skip


def arrays(size, window, batch=2):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(batch, *size, 3)), jnp.float32)
  return x, jnp.asarray(rng.normal(size=(*window, 3, 4)), jnp.float32)


@pytest.mark.parametrize(
  ('size', 'window', 'strides', 'padding', 'around'),
  [(*case, 'vmap') for case in CASES]
  + [(*CASES[3], around) for around in ('eager', 'scan')],
)
@pytest.mark.parametrize('method', rest_by_night(['forward_form', 'patches']))
def test_values_and_gradients_match_lax(size, window, strides, padding, around, method):
  x, kernel = arrays(size, window)

  def both(convolve):
    def loss(x, kernel):
      return jnp.sin(convolve(x, kernel)).sum()

    def out(x, kernel):
      return convolve(x, kernel), *jax.grad(loss, argnums=(0, 1))(x, kernel)

    if around == 'vmap':
      stacked = jnp.stack([x, 2 * x, x - 1]), jnp.stack([kernel, kernel / 2, kernel])
      return jax.jit(jax.vmap(out))(*stacked)
    if around == 'scan':

      def step(k, _):
        return (k - 0.01 * out(x, k)[2], out(x, k))

      return jax.lax.scan(step, kernel, length=3)[1]
    return out(x, kernel)

  options = {'strides': strides, 'padding': padding, 'method': method}
  got = both(lambda x, k: conv.conv2d(x, k, **options))
  want = both(lambda x, k: plain(x, k, strides, padding))
  for g, w in zip(got, want, strict=True):
    np.testing.assert_allclose(g, w, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize('padding', ['VALID', 'SAME'])
@pytest.mark.parametrize('size', [(8, 8), (7, 9)])
def test_max_pool_matches_reduce_window(size, padding):
  x = jnp.asarray(np.random.default_rng(1).normal(size=(2, *size, 3)), jnp.float32)

  def reference(x):
    return jax.lax.reduce_window(
      x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), padding
    )

  def pool(x):
    return conv.max_pool(x, padding=padding)

  def gradient(f, x):
    return jax.jit(jax.grad(lambda x: jnp.sin(f(x)).sum()))(x)

  # Whole numbers tie: of equal ones, the first of a window learns.
  for values in (x, jnp.round(x)):
    np.testing.assert_array_equal(pool(values), reference(values))
    got, expected = gradient(pool, values), gradient(reference, values)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


class _Linen(nn.Module):
  """Convolutions of Flax: plain, strided, circular, dilated and depthwise."""

  @nn.compact
  def __call__(self, x):
    x = nn.Conv(4, (3, 3), name='plain')(x)
    x = nn.Conv(4, (3, 2), strides=2, padding=((1, 0), (0, 1)), name='strided')(x)
    x = nn.Conv(4, (3, 3), padding='CIRCULAR', use_bias=False, name='circular')(x)
    x = nn.Conv(4, (3, 3), kernel_dilation=2, name='dilated')(x)
    x = nn.Conv(4, 3, feature_group_count=2, name='depthwise')(x.reshape(len(x), -1, 4))
    return nn.Dense(3)(x.reshape(x.shape[0], -1))


class _Nnx(nnx.Module):
  """The same in NNX, but the last two."""

  def __init__(self, rngs):
    self.plain = nnx.Conv(3, 4, (3, 3), rngs=rngs)
    self.strided = nnx.Conv(
      4, 4, (3, 2), strides=2, padding=((1, 0), (0, 1)), rngs=rngs
    )
    self.dilated = nnx.Conv(4, 4, (3, 3), kernel_dilation=2, rngs=rngs)
    self.logits = nnx.Linear(4 * 5 * 4, 3, rngs=rngs)

  def __call__(self, x):
    x = self.dilated(self.strided(self.plain(x)))
    return self.logits(x.reshape(x.shape[0], -1))


@pytest.mark.parametrize(('module', 'plain'), rest_by_night([(_Linen(), 3), (_Nnx, 2)]))
def test_convolutions_of_flax_are_computed_as_conv2d(module, plain, monkeypatch):
  x = arrays((9, 9), (3, 3))[0]
  shape, called = x.shape[1:], []
  convolve = conv.conv2d

  def counted(*args, **kwargs):
    called.append(args)
    return convolve(*args, **kwargs)

  def loss(model, params):
    return jnp.sin(model.apply(params, x)).sum()

  if isinstance(module, nn.Module):
    model = models.from_flax(module, shape)
  else:
    model = models.from_flax(lambda rngs: module(rngs), shape)
  params = jax.jit(model.init)(jax.random.key(0))
  with monkeypatch.context() as m:
    m.setattr(conv, 'conv2d', counted)
    got = jax.jit(jax.value_and_grad(lambda p: loss(model, p)))(params)
  assert len(called) == plain
  monkeypatch.setattr(conv, 'general_dilated', jax.lax.conv_general_dilated)
  want = jax.jit(jax.value_and_grad(lambda p: loss(model, p)))(params)
  for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_a_module_of_flax_is_left_as_it_was():
  module = nn.Conv(2, (3, 3))
  model = models.from_flax(nn.Sequential([module, jnp.ravel]), (4, 4, 1))
  jax.eval_shape(model.init, jax.random.key(0))
  assert module.conv_general_dilated is None


def test_large_dense_layers_behind_convolutions_of_flax_keep_changes():
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = nn.Conv(2, (3, 3))(x)
      return nn.Dense(3)(nn.relu(nn.Dense(5, name='wide')(x.reshape(len(x), -1))))

  model, products = models.from_flax(Net(), (4, 4, 1)), []
  params = model.init(jax.random.key(0))
  model.apply_with(params, jnp.zeros((2, 4, 4, 1)), lambda p, x: products.append(p))
  assert products == [('wide',), ('Dense_0',)]
