"""Models of tokens compute what their equations say, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from fesem_jax import models
from fesem_jax.models import networks, recurrent
from fesem_jax.models.layers import Embedding
from fesem_jax.models.recurrent import Recurrent
from fesem_jax.models.transformer import Transformer

TOKENS, LENGTH = 7, 5
SMALL = {
  'lstm': Recurrent('lstm', TOKENS, embedding=3, width=4),
  'gru': Recurrent('gru', TOKENS, embedding=3, width=4),
  'transformer': Transformer(TOKENS, width=4, heads=2),
}
X = np.array([[0, 6, 2, 2, 5], [3, 1, 0, 4, 6]], np.float32)


def model_of(name, **changes):
  module = SMALL[name].clone(**changes)
  return networks.as_model(module, (LENGTH,))


def start(name):
  """Parameters away from where they start: biases and scales too."""
  params = jax.jit(model_of(name).init)(jax.random.key(0))
  leaves, form = jax.tree.flatten(params)
  rng = np.random.default_rng(1)
  moved = [np.asarray(x + rng.normal(0, 0.3, x.shape), np.float32) for x in leaves]
  return jax.tree.unflatten(form, moved)


def dense(layer, x):
  return x @ layer['kernel'] + layer['bias']


def lstm(layer, x):
  """[B, S, H] states of an LSTM, step by step, gate by gate."""
  size = layer['recurrent'].shape[0]
  h = c = np.zeros((x.shape[0], size))
  states = []
  for t in range(x.shape[1]):
    gates = x[:, t] @ layer['kernel'] + h @ layer['recurrent'] + layer['bias']
    i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
    c = special.expit(f) * c + special.expit(i) * np.tanh(g)
    h = special.expit(o) * np.tanh(c)
    states.append(h)
  return np.stack(states, axis=1)


def gru(layer, x):
  """[B, S, H] states of a GRU whose new gate resets what the kernel gives."""
  size = layer['recurrent'].shape[0]
  h = np.zeros((x.shape[0], size))
  states = []
  for t in range(x.shape[1]):
    a = x[:, t] @ layer['kernel'] + layer['bias']
    b = h @ layer['recurrent']
    r = special.expit(a[:, :size] + b[:, :size])
    z = special.expit(a[:, size : 2 * size] + b[:, size : 2 * size])
    n = np.tanh(a[:, 2 * size :] + r * (b[:, 2 * size :] + layer['recurrent_bias']))
    h = (1 - z) * n + z * h
    states.append(h)
  return np.stack(states, axis=1)


def norm(layer, x):
  centered = x - x.mean(axis=-1, keepdims=True)
  deviation = np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + 1e-6)
  return centered / deviation * layer['scale'] + layer['bias']


def attention(layer, x, heads=2):
  """[B, S, D]: example by example, head by head, position by position."""
  out = np.zeros_like(x)
  width = x.shape[-1]
  each = width // heads
  parts = dense(layer['query_key_value'], x)
  for b in range(x.shape[0]):
    for head in range(heads):
      q, k, v = (
        parts[b, :, i * width + head * each : i * width + (head + 1) * each]
        for i in range(3)
      )
      for s in range(x.shape[1]):
        weights = special.softmax(k[: s + 1] @ q[s] / np.sqrt(each))
        out[b, s, head * each : (head + 1) * each] = weights @ v[: s + 1]
  return dense(layer['out'], out)


def reference(name, params):
  """[B, S, L] logits in float64."""
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  x = p['embedding']['embedding'][X.astype(int)]
  if name == 'transformer':
    x = x + p['positions']['embedding']
    for i in range(2):
      block = p[f'block{i}']
      x = x + attention(block['attention'], norm(block['norm0'], x))
      y = dense(block['dense0'], norm(block['norm1'], x))
      # GPT-2's gelu.
      y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
      x = x + dense(block['dense1'], y)
    return dense(p['logits'], norm(p['norm'], x))
  layer = {'lstm': lstm, 'gru': gru}[name]
  for i in range(2):
    x = layer(p[f'{name}{i}'], x)
  return dense(p['logits'], x)


@pytest.mark.parametrize('name', models.OF_TOKENS)
def test_logits_are_those_of_the_equations(name):
  params = start(name)
  want = reference(name, params)
  everywhere = jax.jit(model_of(name, every_position=True).apply)(params, X)
  np.testing.assert_allclose(everywhere, want, rtol=1e-4, atol=1e-5)
  last = jax.jit(model_of(name).apply)(params, X)
  np.testing.assert_allclose(last, want[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('kind', ['lstm', 'gru'])
def test_gradients_are_those_of_the_loop(kind):
  cell = recurrent.CELLS[kind]
  gates, carries = cell.gates, cell.carries
  rng = np.random.default_rng(0)
  shapes = (4, gates * 4), (gates * 4,), (LENGTH, 2, gates * 4)
  args = [rng.normal(size=s).astype(np.float32) for s in shapes]
  weights = rng.normal(size=(LENGTH, 2, 4)).astype(np.float32)

  def unrolled(kernel, bias, x):
    carry, states = (jnp.zeros((2, 4)),) * carries, []
    for of_step in x:
      product = carry[0] @ kernel + bias[None]
      both = (None, product + of_step) if kind == 'lstm' else (of_step, product)
      carry = cell.step(carry, *both)
      states.append(carry[0])
    return jnp.stack(states)

  def gradients(states):
    return jax.grad(lambda *a: (states(*a) * weights).sum(), argnums=(0, 1, 2))

  def ours(*args):
    return recurrent.recur(cell, *args)

  got = jax.jit(gradients(ours))(*args)
  want = jax.jit(gradients(unrolled))(*args)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  # Side by side, clients have gradients of their own.
  stacks = [np.stack([a, 2 * a]) for a in args]
  both = jax.jit(jax.vmap(gradients(ours)))(*stacks)
  for stack, a in zip(both, got, strict=True):
    np.testing.assert_allclose(stack[0], a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('vocabulary', [3, 1024, 1025])
def test_tokens_are_looked_up_in_vocabularies_of_any_size(vocabulary):
  table = np.random.default_rng(0).normal(size=(vocabulary, 2)).astype(np.float32)
  x = np.array([[0.0, 1.0], [vocabulary - 1.0, vocabulary + 5.0], [-2.0, 2.0]])
  module = Embedding(vocabulary, 2)
  got = module.apply({'params': {'embedding': table}}, x.astype(np.float32))
  last = vocabulary - 1
  expected = table[np.array([[0, 1], [last, last], [0, 2]])]
  np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_forget_gate_starts_open():
  bias = start_of('lstm')['lstm0']['bias']
  np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 4))


def start_of(name):
  return jax.jit(model_of(name).init)(jax.random.key(0))
