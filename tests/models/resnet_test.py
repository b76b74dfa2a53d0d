"""Residual networks compute what their equations say."""

import jax
import numpy as np
import pytest

from fesem_jax.models import networks
from fesem_jax.models.resnet import SIZES, ResNet, resnet


def convolve(x, kernel, strides, padding):
  x = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
  window = kernel.shape[0]
  sides = [(n - window) // strides + 1 for n in x.shape[1:3]]
  out = np.zeros((x.shape[0], *sides, kernel.shape[-1]))
  for i in range(sides[0]):
    for j in range(sides[1]):
      seen = x[:, i * strides :, j * strides :][:, :window, :window]
      out[:, i, j] = np.einsum('bhwi,hwio->bo', seen, kernel)
  return out


def normalize(layer, x, groups=2, epsilon=1e-5):
  if 'mean' in layer:  # BatchNorm in evaluation.
    unit = (x - layer['mean']) / np.sqrt(layer['var'] + epsilon)
    return unit * layer['scale'] + layer['bias']
  parts = np.split(x, groups, axis=-1)
  parts = [
    (part - part.mean(axis=(1, 2, 3), keepdims=True))
    / np.sqrt(part.var(axis=(1, 2, 3), keepdims=True) + epsilon)
    for part in parts
  ]
  return np.concatenate(parts, axis=-1) * layer['scale'] + layer['bias']


def reference(params, x, stages):
  x = convolve(x, params['conv']['kernel'], 1, 1)
  x = np.maximum(normalize(params['norm'], x), 0)
  for i, count in enumerate(stages):
    for j in range(count):
      block = params[f'stage{i}_block{j}']
      strides = 2 if i and not j else 1
      y = convolve(x, block['conv0']['kernel'], strides, 1)
      y = np.maximum(normalize(block['norm0'], y), 0)
      y = normalize(block['norm1'], convolve(y, block['conv1']['kernel'], 1, 1))
      if 'shortcut' in block:
        x = convolve(x, block['shortcut']['kernel'], strides, 0)
        x = normalize(block['shortcut_norm'], x)
      elif strides == 2:
        new = y.shape[-1] - x.shape[-1]
        x = np.pad(x[:, ::2, ::2], [(0, 0)] * 3 + [(new // 2, new - new // 2)])
      x = np.maximum(x + y, 0)
  return x.mean(axis=(1, 2)) @ params['logits']['kernel'] + params['logits']['bias']


@pytest.mark.parametrize(('projected', 'groups'), [(False, 2), (True, 2), (True, None)])
def test_logits_are_those_of_the_equations(projected, groups):
  module = ResNet((1, 2), (4, 8), 3, projected, groups)
  model = networks.as_model(module, (6, 7, 3))
  params = jax.jit(model.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda a: np.asarray(a + rng.normal(0, 0.2, a.shape)), params)
  x = rng.normal(size=(2, 6, 7, 3)).astype(np.float32)
  assert ('shortcut' in params['stage1_block0']) == projected
  want = reference(jax.tree.map(np.float64, params), x.astype(np.float64), (1, 2))
  got = jax.jit(model.apply)(jax.tree.map(np.float32, params), x)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_names_count_the_layers_that_have_weights():
  for layers in SIZES:
    model = networks.as_model(resnet(layers, 10), (32, 32, 3))
    params = jax.eval_shape(model.init, jax.random.key(0))
    kernels = [
      path
      for path, _ in jax.tree_util.tree_leaves_with_path(params)
      if path[-1].key == 'kernel' and path[-2].key != 'shortcut'
    ]
    assert len(kernels) == layers
