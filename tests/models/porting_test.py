"""Weights of PyTorch give the logits here that PyTorch's layers would give."""

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import special

from fesem_jax import models
from fesem_jax.models import networks, porting
from fesem_jax.models.recurrent import Recurrent
from fesem_jax.utils.errors import UserError
from tests.support import batch_norm

RNG = np.random.default_rng(0)


def draw(**shapes):
  return {n.replace('__', '.'): RNG.normal(0, 0.2, s) for n, s in shapes.items()}


LENET = draw(
  conv1__weight=(6, 1, 5, 5), conv1__bias=(6,),
  conv2__weight=(16, 6, 5, 5), conv2__bias=(16,),
  fc1__weight=(120, 256), fc1__bias=(120,), fc2__weight=(84, 120), fc2__bias=(84,),
  fc3__weight=(10, 84), fc3__bias=(10,),
)  # fmt: skip
X = RNG.random((2, 1, 28, 28))


def conv(layer, x):
  """PyTorch's Conv2d on [B, C, H, W], without padding."""
  weight = LENET[f'{layer}.weight']
  side = x.shape[2] - weight.shape[2] + 1
  out = np.zeros((len(x), weight.shape[0], side, side))
  for i in range(side):
    for j in range(side):
      seen = x[:, :, i : i + weight.shape[2], j : j + weight.shape[3]]
      out[:, :, i, j] = np.einsum('bchw,ochw->bo', seen, weight)
  return out + LENET[f'{layer}.bias'][:, None, None]


def pool(x):
  batch, channels, side, _ = x.shape
  return x.reshape(batch, channels, side // 2, 2, side // 2, 2).max(axis=(3, 5))


def lenet(x):
  for layer in ('conv1', 'conv2'):
    x = pool(np.maximum(conv(layer, x), 0))
  x = x.reshape(len(x), -1)
  for layer in ('fc1', 'fc2', 'fc3'):
    x = x @ LENET[f'{layer}.weight'].T + LENET[f'{layer}.bias']
    x = x if layer == 'fc3' else np.maximum(x, 0)
  return x


def test_convolutions_and_what_flattens_them():
  model = models.build('niid_bench_cnn', (28, 28), 10)
  params = porting.from_state_dict(model, LENET)
  x = X[:, 0].astype(np.float32)
  got = jax.jit(model.apply)(params, x)
  np.testing.assert_allclose(got, lenet(X), rtol=1e-4, atol=1e-4)


def test_a_model_goes_back_to_pytorch():
  model = models.build('niid_bench_cnn', (28, 28), 10)
  state = porting.to_state_dict(model, porting.from_state_dict(model, LENET))
  assert list(state) == [
    f'{layer}.{part}'
    for layer in ('conv0', 'conv1', 'dense0', 'dense1', 'logits')
    for part in ('weight', 'bias')
  ]
  for result, want in zip(state.values(), LENET.values(), strict=True):
    np.testing.assert_array_equal(result, want.astype(np.float32))
  lstm = models.build('lstm', (5,), 3, task='sequence')
  with pytest.raises(UserError, match='to_torch'):
    porting.to_state_dict(lstm, lstm.init(jax.random.key(0)))


@pytest.mark.parametrize('name', ['resnet8', 'resnet8_bn'])
def test_norms_go_back_to_pytorch(name):
  model = models.build(name, (8, 8, 3), 4)
  start = jax.jit(model.init)(jax.random.key(0))
  params = jax.tree.map(lambda x: np.float32(x + RNG.random(x.shape)), start)
  state = porting.to_state_dict(model, params)
  assert any(x.endswith('running_mean') for x in state) == name.endswith('bn')
  again = porting.from_state_dict(model, state)
  for result, want in zip(*map(jax.tree.leaves, (again, params)), strict=True):
    np.testing.assert_allclose(result, want, rtol=1e-6)


def lstm(state, tokens):
  """PyTorch's LSTM with both biases, one example."""
  x, size = state['embedding.weight'][tokens], state['rnn.weight_hh_l0'].shape[1]
  for layer in range(2):
    ih, hh, b_ih, b_hh = (
      state[f'rnn.{n}_l{layer}']
      for n in ('weight_ih', 'weight_hh', 'bias_ih', 'bias_hh')
    )
    h = c = np.zeros(size)
    states = []
    for row in x:
      a, b = ih @ row + b_ih, hh @ h + b_hh
      i, f, g, o = np.split(a + b, 4)
      c = special.expit(f) * c + special.expit(i) * np.tanh(g)
      h = special.expit(o) * np.tanh(c)
      states.append(h)
    x = np.stack(states)
  return x[-1] @ state['fc.weight'].T + state['fc.bias']


def test_recurrent_layers():
  size, tokens = 16, np.array([[0, 3, 2], [1, 1, 4]])
  state = draw(embedding__weight=(5, 3), fc__weight=(5, 4), fc__bias=(5,))
  for layer, inputs in enumerate((3, 4)):
    shapes = {
      'weight_ih': (size, inputs), 'weight_hh': (size, 4),
      'bias_ih': (size,), 'bias_hh': (size,),
    }  # fmt: skip
    state |= {f'rnn.{n}_l{layer}': RNG.normal(0, 0.5, s) for n, s in shapes.items()}
  model = networks.as_model(Recurrent('lstm', 5, embedding=3, width=4), (3,))
  params = porting.from_state_dict(model, state)
  got = jax.jit(model.apply)(params, tokens.astype(np.float32))
  want = [lstm(state, row) for row in tokens]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'fc2.weight': np.ones((2, 2))}, 'layer dense1'),
    ({'fc4.weight': np.ones((2, 2))}, 'lacks fc4'),
    ({'fc4.weight': np.full((2, 2), 1e300)}, 'fc4.weight'),
    ({'bn1.running_mean': np.ones(6)}, 'lacks bn1'),
  ],
)
def test_what_does_not_fit_is_named(changes, message):
  model = models.build('niid_bench_cnn', (28, 28), 10)
  with pytest.raises(UserError, match=message):
    porting.from_state_dict(model, LENET | changes)


def test_statistics_of_batch_norm_are_those_of_the_state_dict():
  model = models.from_flax(batch_norm.LinenNet(), (6,))
  state = draw(
    fc1__weight=(5, 6), fc1__bias=(5,), bn__weight=(5,), bn__bias=(5,),
    bn__running_mean=(5,), bn__running_var=(5,), fc2__weight=(3, 5), fc2__bias=(3,),
  )  # fmt: skip
  state |= {'bn.running_var': np.square(state['bn.running_var'])}
  state |= {'bn.num_batches_tracked': np.int64(7)}
  params = porting.from_state_dict(model, state)
  x = RNG.normal(size=(4, 6)).astype(np.float32)
  z = x @ state['fc1.weight'].T + state['fc1.bias']
  unit = (z - state['bn.running_mean']) / np.sqrt(state['bn.running_var'] + 1e-5)
  h = np.maximum(unit * state['bn.weight'] + state['bn.bias'], 0)
  want = h @ state['fc2.weight'].T + state['fc2.bias']
  np.testing.assert_allclose(model.apply(params, x), want, rtol=1e-4, atol=1e-5)


def test_norms_and_the_pixels_behind_them_take_their_places():
  model = models.build('celeba_cnn', (20, 40, 3), 2)  # 2 x 3 pixels are left.
  params = jax.tree.map(
    lambda x: RNG.normal(size=x.shape).astype(np.float32),
    jax.eval_shape(model.init, jax.random.key(0)),
  )
  state = {}
  for i in range(4):
    conv, norm = params[f'conv{i}'], params[f'norm{i}']
    state[f'block{i}/conv/weight'] = np.transpose(conv['kernel'], (3, 2, 0, 1))
    state[f'block{i}/conv/bias'] = conv['bias']
    state[f'block{i}/norm/weight'] = norm['scale']
    state[f'block{i}/norm/bias'] = norm['bias']
  pixels = params['logits']['kernel'].reshape(2, 3, 32, 2)  # Channels last.
  state['out/weight'] = pixels.transpose(3, 2, 0, 1).reshape(2, -1)
  state['out/bias'] = params['logits']['bias']
  result = porting.from_state_dict(model, state)
  jax.tree.map(np.testing.assert_array_equal, result, params)
  assert all(x.dtype == np.float32 for x in jax.tree.leaves(result))


class Nnx(nnx.Module):
  """Layers whose names sort in another order than they are defined, and run, in."""

  def __init__(self, rngs):
    self.stem = nnx.Conv(1, 2, (1, 1), rngs=rngs)
    self.inner = nnx.data({n: nnx.Linear(8, 8, rngs=rngs) for n in 'za'})
    self.body = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(11)])
    self.head = nnx.Linear(8, 3, rngs=rngs)

  def __call__(self, x):
    x = self.stem(x).reshape(x.shape[0], -1)
    for layer in (self.inner['z'], self.inner['a'], *self.body):
      x = layer(x)
    return self.head(x)


def test_layers_of_nnx_take_modules_in_the_order_of_their_definition():
  model = models.from_flax(lambda rngs: Nnx(rngs), (1, 4, 1))
  linear = ['inner.z', 'inner.a', *(f'body.{i}' for i in range(11)), 'head']
  shapes = {name: (3 if name == 'head' else 8, 8) for name in linear}
  state = draw(stem__weight=(2, 1, 1, 1), stem__bias=(2,))
  for name, shape in shapes.items():
    state |= {f'{name}.weight': RNG.normal(0, 0.5, shape)}
    state |= {f'{name}.bias': RNG.normal(size=shape[0])}
  x = RNG.random((2, 1, 1, 4))
  expected = np.einsum('bchw,oc->bohw', x, state['stem.weight'][:, :, 0, 0])
  expected = (expected + state['stem.bias'][:, None, None]).reshape(2, -1)
  for name in linear:
    expected = expected @ state[f'{name}.weight'].T + state[f'{name}.bias']
  params = porting.from_state_dict(model, state)
  got = model.apply(params, np.moveaxis(x, 1, 3).astype(np.float32))
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
