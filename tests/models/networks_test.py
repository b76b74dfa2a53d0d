import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fesem_jax import algorithms, models
from fesem_jax.core import tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.evaluation.evaluate import measure_chunk
from fesem_jax.models import networks
from fesem_jax.utils.errors import UserError
from tests.models.resnet_test import convolve, normalize
from tests.support import helpers, reference
from tests.support.methods import federation, run


@pytest.mark.parametrize(
  ('name', 'shape', 'classes', 'size'),
  [
    ('logistic', (28, 28), 10, 784 * 10 + 10),
    ('mlp', (28, 28), 10, 159_010),
    ('small_cnn', (8, 8), 10, 160 + 4640 + (128 * 64 + 64) + 650),
    ('two_nn', (28, 28), 10, 199_210),  # As McMahan et al. report; so the next one.
    ('mcmahan_cnn', (28, 28), 10, 1_663_370),
    ('femnist_cnn', (28, 28), 62, 6_603_710),  # As LEAF and FedAvg report.
    ('emnist_cnn', (28, 28, 1), 62, 1_206_590),  # As TFF and FedJAX report.
    # 84 -> 42 -> 21 -> 11 -> 6 pixels a side, as in LEAF, whose pooling pads.
    ('celeba_cnn', (84, 84, 3), 2, 896 + 3 * 9248 + 4 * 64 + 6 * 6 * 32 * 2 + 2),
    ('lenet5', (28, 28), 10, 61_706),  # As published of LeNet-5, in a frame ...
    ('lenet5', (32, 32), 10, 61_706),  # ... and without.
    # A frame that one side is too small for: 5 x 8 pixels of 16 channels are left.
    ('lenet5', (28, 40), 10, 61_706 + (5 * 8 - 25) * 16 * 120),
    ('lenet5', (32, 32, 3), 10, 62_006),  # As PyTorch's tutorial on CIFAR-10.
    ('niid_bench_cnn', (28, 28), 10, 44_426),
    ('niid_bench_cnn', (32, 32, 3), 10, 62_006),
    ('resnet8', (32, 32, 3), 10, 75_290),
    ('resnet20', (32, 32, 3), 10, 269_722),  # He et al.: 0.27 M.
    ('resnet18', (32, 32, 3), 10, 11_173_962),  # As PyTorch code for CIFAR-10.
    ('resnet8_bn', (32, 32, 3), 10, 75_290 + 2 * 240),  # A mean and a variance more.
    ('resnet20_bn', (32, 32, 3), 10, 269_722 + 2 * 688),
    ('resnet18_bn', (32, 32, 3), 10, 11_173_962 + 9600),  # As PyTorch's buffers.
    ('lstm', (80,), 80, 817_872),
    ('lstm', (80,), 90, 820_522),  # As Reddi et al. report.
    ('gru', (80,), 80, 619_216),
    ('transformer', (80,), 80, 427_600),
  ],
)
def test_sizes_and_shapes(name, shape, classes, size):
  model = models.build(name, shape, classes)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) == size
  x = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
  logits = jax.eval_shape(model.apply, params, x)
  assert logits.shape == (3, classes)
  assert logits.dtype == jnp.float32


class Normed(nn.Module):
  dtype: Any

  @nn.compact
  def __call__(self, x, train=False):
    return nn.BatchNorm(not train, dtype=self.dtype)(nn.Dense(3)(x))


class Noisy(nn.Module):
  """A layer that computes in half precision, whose sums end at 256 or 65504."""

  dtype: Any

  @nn.compact
  def __call__(self, x, train=False):
    return nn.Dropout(0.5, deterministic=not train)(nn.Dense(3, dtype=self.dtype)(x))


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_outputs_of_modules_that_compute_in_half_precision_are_float32(dtype):
  key, x = jax.random.key(0), jnp.ones((2, 4))
  noisy = models.from_flax(Noisy(dtype), (4,))
  of_nnx = models.from_flax(lambda r: nnx.Linear(4, 3, dtype=dtype, rngs=r), (4,))
  norm = models.from_flax(Normed(dtype), (4,))
  for model in (noisy, of_nnx, norm):
    params = jax.eval_shape(model.init, key)
    assert jax.eval_shape(model.apply, params, x).dtype == jnp.float32
  params = jax.eval_shape(noisy.init, key)
  assert jax.eval_shape(noisy.apply_train, params, x, key).dtype == jnp.float32
  params = jax.eval_shape(norm.init, key)
  logits, _ = jax.eval_shape(norm.apply_train, params, x, key, jnp.ones(2))
  assert logits.dtype == jnp.float32
  # 1,000 losses of about 1 each, whose bfloat16 sum would stay at 256.
  x = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
  split = FederatedData.from_arrays(x, np.arange(1000) % 3, [1000])
  counted = models.from_flax(
    Noisy(dtype), (4,), optax.softmax_cross_entropy_with_integer_labels
  )
  params = tree.expand(counted.init(key))
  result = measure_chunk(counted, params, split, jnp.zeros(1, jnp.int32))
  each = counted.loss(counted.apply(tree.unstack(params, 0), split.x), split.y)
  want = np.asarray(each, np.float64).sum()
  np.testing.assert_allclose(result.loss[0], want, rtol=1e-5)


class NnxNet(nnx.Module):
  """The mlp of helpers, with its hidden layers in a list, and one more part."""

  def __init__(self, widths, classes, rngs, part=None):
    sizes = [*helpers.SHAPE, *widths]
    self.hidden = nnx.List(
      [nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)]
    )
    self.logits = nnx.Linear(sizes[-1], classes, rngs=rngs)
    self.part = None if part is None else part(rngs)

  def __call__(self, x):
    for layer in self.hidden:
      x = nnx.relu(layer(x))
    return self.logits(x if self.part is None else self.part(x))


@pytest.mark.slow
def test_nnx_modules_train_like_linen_ones():
  linen = models.build('mlp', helpers.SHAPE, 3, (5,))
  model = models.from_flax(lambda rngs: NnxNet((5,), 3, rngs), helpers.SHAPE)
  init = jax.jit(model.init)
  first, second = (init(jax.random.key(i)) for i in (0, 1))
  assert list(first) == ['hidden', 'logits']
  assert list(first['hidden']) == ['0']
  kernels = [p['logits']['kernel'] for p in (first, second)]
  assert np.abs(kernels[0] - kernels[1]).max() > 0.1
  params = {'dense0': first['hidden']['0'], 'logits': first['logits']}
  x = np.random.default_rng(0).normal(size=(4, *helpers.SHAPE)).astype(np.float32)
  np.testing.assert_allclose(
    model.apply(first, x), linen.apply(params, x), rtol=1e-5, atol=1e-6
  )
  data, ends = federation(), []
  for network, start in ((model, first), (linen, params)):
    algorithm = algorithms.build('fed_avg', helpers.local()._replace(model=network))

    def init(key, data, start=start, init=algorithm.init):
      return init(key, data)._replace(params=tree.expand(start))

    state, _ = run(algorithm._replace(init=init), data, rounds=2)
    ends.append(state.params)
  got, want = ends
  got = {'dense0': got['hidden']['0'], 'logits': got['logits']}
  np.testing.assert_allclose(
    reference.flat(reference.from_params(got, 0)),
    reference.flat(reference.from_params(want, 0)),
    rtol=1e-4,
    atol=1e-6,
  )


def test_nnx_modules_are_given_as_functions_that_make_them():
  with pytest.raises(UserError, match='module'):
    models.from_flax(NnxNet((5,), 3, nnx.Rngs(0)), helpers.SHAPE)


@pytest.mark.parametrize(
  ('name', 'shape', 'options', 'message'),
  [
    ('resnet', (8, 8), {}, 'model'),
    ('small_cnn', (8,), {}, 'small_cnn: takes images'),
    ('small_cnn', (3, 32, 32), {}, 'small_cnn: channels'),
    ('resnet8', (1, 28, 28), {}, 'resnet8: channels'),
    ('niid_bench_cnn', (15, 20), {}, 'niid_bench_cnn: needs 16'),
    ('lenet5', (12, 11, 2), {}, 'lenet5: needs 12'),
    ('lstm', (8, 8), {}, 'lstm: takes sequences'),
    ('mlp(width=3)', (8,), {}, 'mlp: no option width'),
    ('mlp', (8,), {'task': 'sequence'}, 'mlp: has no logits'),
    ('mlp', (8,), {'task': 'ranking'}, 'task'),
    ('gru(depth=2.5)', (5,), {}, 'gru: depth'),
    ('gru(depth=0)', (5,), {}, 'gru: depth'),
    ('gru(depth=101)', (5,), {}, 'gru: depth'),
    ('gru(1)', (5,), {}, 'model'),
  ],
)
def test_what_a_model_cannot_be_is_refused(name, shape, options, message):
  with pytest.raises(UserError, match=message):
    models.build(name, shape, 10, **options)


@pytest.mark.parametrize(
  ('name', 'options', 'shape', 'layer', 'want'),
  [
    ('gru', 'width=12, depth=1', (5,), 'gru0', (12, 36)),
    ('lstm', 'embedding=4', (5,), 'embedding', (7, 4)),
    ('transformer', 'width=16, heads=2', (5,), 'logits', (16, 7)),
    ('small_cnn', 'window=5, width=9', (8, 8), 'logits', (9, 7)),
  ],
)
def test_options_change_widths_and_depths(name, options, shape, layer, want):
  model = models.build(f'{name}({options})', shape, 7)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert want in [x.shape for x in jax.tree.leaves(params[layer])]
  defaults = jax.eval_shape(models.build(name, shape, 7).init, jax.random.key(0))
  assert want not in [x.shape for x in jax.tree.leaves(defaults[layer])]


@pytest.mark.parametrize('name', models.OF_TOKENS)
def test_models_of_tokens_have_logits_at_every_position_if_asked(name):
  model = models.build(name, (5,), 7, task='sequence')
  params = jax.eval_shape(model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((2, 5), jnp.float32)
  assert jax.eval_shape(model.apply, params, x).shape == (2, 5, 7)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(
    jnp.shape, jax.eval_shape(models.build(name, (5,), 7).init, jax.random.key(0))
  )


def pool(x, padded=False):
  """The maximum of windows of 2x2; a row or column left over is dropped, or one."""
  if padded:
    rest = [(0, n % 2) for n in x.shape[1:3]]
    x = np.pad(x, [(0, 0), *rest, (0, 0)], constant_values=-np.inf)
  height, width = (n // 2 * 2 for n in x.shape[1:3])
  x = x[:, :height, :width]
  return np.max([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)


def in_numpy(name, params, x):
  """Logits of a network of convolutions, from its description."""

  def conv(i, x, padding):
    layer = params[f'conv{i}']
    return convolve(x, layer['kernel'], 1, padding) + layer['bias']

  def dense(layer, x):
    return x @ params[layer]['kernel'] + params[layer]['bias']

  def relu(x):
    return np.maximum(x, 0)

  if name == 'small_cnn':
    for i in (0, 1):
      x = pool(relu(conv(i, x, 1)))
    layers = ['dense']
  elif name == 'emnist_cnn':
    x = pool(relu(conv(1, relu(conv(0, x, 0)), 0)))
    layers = ['dense']
  elif name == 'celeba_cnn':
    for i in range(4):
      x = relu(pool(normalize(params[f'norm{i}'], conv(i, x, 1), 8, 1e-6), True))
    layers = []
  else:
    for i in (0, 1):
      x = pool(relu(conv(i, x, 2 if i == 0 and name == 'lenet5' else 0)))
    layers = ['dense0', 'dense1']
  x = x.reshape(len(x), -1)
  for layer in layers:
    x = relu(dense(layer, x))
  return dense('logits', x)


@pytest.mark.parametrize(
  ('name', 'shape'), [('small_cnn', (9, 8)), ('emnist_cnn', (9, 8, 2)),
                      ('celeba_cnn', (6, 5, 3)), ('lenet5', (13, 12)),
                      ('niid_bench_cnn', (17, 16))]
)  # fmt: skip
def test_logits_are_those_of_the_description(name, shape):
  model, rng = models.build(name, shape, 3), np.random.default_rng(0)
  params = jax.eval_shape(model.init, jax.random.key(0))
  params = jax.tree.map(lambda a: rng.normal(0, 0.2, a.shape), params)
  x = rng.normal(size=(2, *shape))
  images = x if x.ndim == 4 else x[..., None]
  got = jax.jit(model.apply)(jax.tree.map(np.float32, params), x.astype(np.float32))
  expected = in_numpy(name, params, images)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


class _Embedded(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.Dense(3)(nn.Embed(50, 8)(x).mean(axis=1))


class _EmbeddedNnx(nnx.Module):
  def __init__(self, rngs):
    self.embed = nnx.Embed(50, 8, rngs=rngs)
    self.dense = nnx.Linear(8, 3, rngs=rngs)

  def __call__(self, x):
    return self.dense(self.embed(x).mean(axis=1))


@pytest.mark.parametrize('module', [_Embedded(), _EmbeddedNnx])
def test_modules_that_take_integers_get_the_tokens_as_integers(module):
  model = models.from_flax(module, (6,))
  params = model.init(jax.random.key(0))
  tokens = np.random.default_rng(0).integers(0, 50, (4, 6))
  if isinstance(module, nn.Module):
    expected = module.apply({'params': params}, tokens)
  else:
    embed, dense = (jax.tree.map(np.asarray, params[n]) for n in ('embed', 'dense'))
    expected = embed['embedding'][tokens].mean(axis=1) @ dense['kernel'] + dense['bias']
  got = model.apply(params, tokens.astype(np.float32))
  np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_layers_that_multiply_in_a_way_of_their_own_are_no_plain_ones():
  """Only products of plain ones may be computed elsewhere, as with a shared start."""

  def is_plain(**options):
    return networks._is_plain_dense(nn.Dense(3, **options))

  assert is_plain()
  assert is_plain(dtype=jnp.float32)
  for options in (
    {'precision': 'highest'},
    {'dtype': jnp.bfloat16},
    {'param_dtype': jnp.bfloat16},
    {'dot_general': lambda *args, **options: None},
    {'dot_general_cls': lambda: None},
    {'promote_dtype': lambda *args, **options: args},
  ):
    assert not is_plain(**options), options
