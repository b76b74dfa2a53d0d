import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.models import conv


def plain(x, kernel, strides, padding):
  return jax.lax.conv_general_dilated(
    x, kernel, strides, padding, dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


CASES = [
  ((9, 9), (3, 3), (1, 1), 'SAME'),
  ((9, 8), (5, 3), (1, 1), 'VALID'),
  ((8, 8), (4, 2), (1, 1), 'SAME'),
  ((9, 10), (3, 3), (2, 2), 'SAME'),
  ((10, 9), (3, 2), (2, 3), 'VALID'),
  ((7, 7), (3, 3), (1, 2), ((2, 0), (1, 3))),
]


def arrays(size, window, batch=2):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(batch, *size, 3)), jnp.float32)
  return x, jnp.asarray(rng.normal(size=(*window, 3, 4)), jnp.float32)


@pytest.mark.parametrize(
  ('size', 'window', 'strides', 'padding', 'around'),
  [(*case, 'vmap') for case in CASES]
  + [(*case, a) for case in CASES[1:4:2] for a in ('eager', 'jit', 'scan')],
)
@pytest.mark.parametrize('method', ['forward_form', 'patches'])
def test_values_and_gradients_match_lax(size, window, strides, padding, around, method):
  x, kernel = arrays(size, window)

  def both(convolve):
    def loss(x, kernel):
      return jnp.sin(convolve(x, kernel)).sum()

    def out(x, kernel):
      return (
            convolve(x, kernel), *jax.grad(loss, argnums=(0, 1))(x, kernel)
        )  # fmt: skip

    if around == 'vmap':
      stacked = jnp.stack([x, 2 * x, x - 1]), jnp.stack([kernel, kernel / 2, kernel])
      return jax.jit(jax.vmap(out))(*stacked)
    if around == 'scan':

      def step(k, _):
        return (k - 0.01 * out(x, k)[2], out(x, k))

      return jax.lax.scan(step, kernel, length=3)[1]
    return (jax.jit(out) if around == 'jit' else out)(x, kernel)

  options = {'strides': strides, 'padding': padding, 'method': method}
  got = both(lambda x, k: conv.conv2d(x, k, **options))
  want = both(lambda x, k: plain(x, k, strides, padding))
  for g, w in zip(got, want, strict=True):
    np.testing.assert_allclose(g, w, rtol=1e-4, atol=2e-4)


def test_unknown_method_is_refused():
  with pytest.raises(ValueError, match='patches'):
    conv.conv2d(*arrays((9, 9), (3, 3)), method='winograd')


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


def test_by_default_a_convolution_keeps_all_pixels():
  x, kernel = arrays((5, 4), (3, 3))
  np.testing.assert_allclose(
    conv.conv2d(x, kernel), plain(x, kernel, (1, 1), 'SAME'), rtol=1e-4, atol=1e-5
  )
