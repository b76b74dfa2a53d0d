import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import models
from fesem_jax.errors import UserError


@pytest.mark.parametrize(
  ('name', 'shape', 'classes', 'size'),
  [
    ('logistic', (28, 28), 10, 784 * 10 + 10),
    ('mlp', (28, 28), 10, 159_010),
    ('small_cnn', (8, 8), 10, 160 + 4640 + (128 * 64 + 64) + 650),
    ('femnist_cnn', (28, 28), 62, 6_603_710),  # As LEAF and FedAvg report.
    ('emnist_cnn', (28, 28, 1), 62, 1_206_590),  # As TFF and FedJAX report.
    # 84 -> 42 -> 21 -> 11 -> 6 pixels a side, as in LEAF, whose pooling pads.
    ('celeba_cnn', (84, 84, 3), 2, 896 + 3 * 9248 + 4 * 64 + 6 * 6 * 32 * 2 + 2),
  ],
)
def test_sizes_and_shapes(name, shape, classes, size):
  model = models.build(name, shape, classes)
  params = model.init(jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) == size
  logits = model.apply(params, jnp.ones((3, *shape)))
  assert logits.shape == (3, classes)
  assert logits.dtype == jnp.float32


def test_layers_are_named_in_order():
  params = models.build('femnist_cnn', (28, 28), 62).init(jax.random.key(0))
  assert list(params) == ['conv0', 'conv1', 'dense', 'logits']
  params = models.build('mlp', (4,), 2, (7, 5)).init(jax.random.key(0))
  assert list(params) == ['dense0', 'dense1', 'logits']


def test_celeba_cnn_treats_examples_one_by_one():
  # LEAF's batch statistics would let a batch's other examples change the logits.
  model = models.build('celeba_cnn', (84, 84, 3), 2)
  params = model.init(jax.random.key(0))
  x = jnp.asarray(np.random.default_rng(0).random((4, 84, 84, 3)), jnp.float32)
  alone = jnp.concatenate([model.apply(params, x[i : i + 1]) for i in range(4)])
  np.testing.assert_allclose(model.apply(params, x), alone, rtol=1e-4, atol=1e-5)


def test_any_flax_module_without_running_statistics_will_do():
  model = models.from_flax(nn.Dense(3), (4,))
  assert model.apply(model.init(jax.random.key(0)), np.ones((2, 4))).shape == (2, 3)

  class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.BatchNorm(use_running_average=False)(x)

  with pytest.raises(ValueError, match="keeps \\['batch_stats'\\]"):
    models.from_flax(Normalized(), (4,))


def test_mistakes_name_the_flag():
  with pytest.raises(
    UserError, match='`model=resnet` is unknown; choose one of logistic'
  ):
    models.build('resnet', (8, 8), 10)
  with pytest.raises(UserError, match='`model=small_cnn` needs images'):
    models.build('small_cnn', (8,), 10)
