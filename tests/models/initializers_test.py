"""Layers start as PyTorch's do."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import models
from fesem_jax.core.types import Model
from fesem_jax.models.initializers import with_pytorch_init


@functools.cache
def layer_starts(name, shape):
  model = models.build(name, shape, 10)
  both = [jax.jit(m.init) for m in (model, with_pytorch_init(model))]
  return jax.device_get([init(jax.random.key(1)) for init in both])


@pytest.mark.parametrize(
  ('layer', 'inputs'), [('conv1', 3 * 3 * 16), ('dense', 2 * 2 * 32), ('logits', 64)]
)
def test_kernels_and_biases_are_uniform_by_the_number_of_inputs(layer, inputs):
  before, after = layer_starts('small_cnn', (8, 8))
  chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
  kernel, bias = after[layer]['kernel'], after[layer]['bias']
  bound = inputs**-0.5
  for x in (kernel, bias):
    assert np.abs(x).max() <= bound
    assert np.abs(x).max() > 0.7 * bound
  assert kernel.std() == pytest.approx(bound / 3**0.5, rel=0.1)
  assert len(np.unique(kernel)) > 0.99 * kernel.size


def test_recurrent_layers_and_embeddings_start_as_those_of_pytorch():
  before, after = layer_starts('gru', (5,))
  chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
  bound, width = 256**-0.5, 256
  for layer in ('gru0', 'gru1'):
    layer_params = after[layer]
    for name in ('kernel', 'recurrent', 'recurrent_bias'):
      assert 0.9 * bound < np.abs(layer_params[name]).max() <= bound
    # Two biases that only add up have a triangular density; a new gate has one.
    sums, single = layer_params['bias'][:-width], layer_params['bias'][-width:]
    for gate in np.split(sums, 2):
      assert bound < np.abs(gate).max() <= 2 * bound
    assert sums.std() == pytest.approx(bound * (2 / 3) ** 0.5, rel=0.15)
    assert np.abs(single).max() <= bound
  assert after['embedding']['embedding'].std() == pytest.approx(1.0, rel=0.2)
  assert len(np.unique(after['embedding']['embedding'])) > 0.99 * 80
  before, after = layer_starts('lstm', (5,))
  bias = after['lstm0']['bias']
  assert np.abs(bias).max() <= 2 * bound  # The forget gate too.
  assert bias.std() == pytest.approx(bound * (2 / 3) ** 0.5, rel=0.1)


def test_each_kernel_and_then_each_table_is_drawn_from_a_key_of_its_own():
  zeros, key = jnp.zeros, jax.random.key(7)
  layers = {
    'table': {'embedding': zeros((5, 3))},
    'last': {'kernel': zeros((4, 5)), 'bias': zeros(5)},
    'first': {'kernel': zeros((3, 4))},
  }
  result = with_pytorch_init(Model(lambda key: layers, lambda params, x: x)).init(key)
  # In the order of names: first, last; then the table.
  for i, (name, shape) in enumerate((('kernel', (4, 5)), ('bias', (5,)))):
    layer_params = jax.random.fold_in(jax.random.fold_in(key, 1), i)
    expected = jax.random.uniform(layer_params, shape, minval=-0.5, maxval=0.5)
    np.testing.assert_array_equal(result['last'][name], expected)
  expected = jax.random.normal(jax.random.fold_in(key, 2), (5, 3))
  np.testing.assert_array_equal(result['table']['embedding'], expected)
