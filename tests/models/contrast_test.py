"""Representations of models, and a model that is contrasted with two others."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import models
from fesem_jax.models.contrast import contrasted, with_inputs_of
from fesem_jax.utils.errors import UserError

SHAPE, CLASSES = (6,), 3
X = np.random.default_rng(0).normal(size=(4, *SHAPE)).astype(np.float32)
Y = np.array([0, 2, 1, 1])
MLP = models.build('mlp', SHAPE, CLASSES, (5, 4))


LEARNS, LIKE, UNLIKE = 'learns', 'like', 'unlike'


def drawn(model, *seeds):
  return [model.init(jax.random.key(seed)) for seed in seeds]


def test_a_representation_is_what_the_layer_gets():
  (params,) = drawn(MLP, 0)
  logits, z = jax.jit(lambda p: with_inputs_of('logits', MLP.apply, p, X))(params)
  np.testing.assert_array_equal(logits, jax.jit(MLP.apply)(params, X))
  layer, z = jax.device_get((params['logits'], z))
  np.testing.assert_allclose(z @ layer['kernel'] + layer['bias'], logits, atol=1e-6)
  _, inputs = with_inputs_of('dense0', MLP.apply, params, X)
  np.testing.assert_array_equal(inputs, X)


class Twice(nn.Module):
  """Its layer runs twice."""

  @nn.compact
  def __call__(self, x):
    x = nn.Dense(6, name='body')(x)
    head = nn.Dense(6, name='head')
    return head(head(x))


@pytest.mark.parametrize(
  ('model', 'layer', 'x'),
  [
    (models.from_flax(Twice(), SHAPE), 'head', X),
    (models.build('transformer', (5,), 4, task='sequence'), 'logits', np.zeros((2, 5))),
  ],
)
def test_a_layer_must_run_once_with_one_vector_for_each_example(model, layer, x):
  params = jax.eval_shape(model.init, jax.random.key(0))
  with pytest.raises(UserError, match=layer):
    jax.eval_shape(lambda p: with_inputs_of(layer, model.apply, p, x), params)


def test_the_contrast_is_between_the_cosines_to_two_models():
  params = dict(zip((LEARNS, LIKE, UNLIKE), drawn(MLP, 0, 1, 2), strict=True))
  model = contrasted(MLP, 'logits', 3.0, 0.5, params[LIKE], params[UNLIKE])
  assert model.apply_train is None
  z = {
    name: np.asarray(with_inputs_of('logits', MLP.apply, p, X)[1], np.float64)
    for name, p in params.items()
  }
  lengths = {name: np.linalg.norm(x, axis=1) for name, x in z.items()}
  p, q = (
    np.exp(
      (z[LEARNS] * z[n]).sum(axis=1)
      / np.maximum(lengths[LEARNS] * lengths[n], 1e-9)
      / 0.5
    )
    for n in (LIKE, UNLIKE)
  )
  plain = MLP.loss(MLP.apply(params[LEARNS], X), Y)
  got = model.loss(model.apply(params[LEARNS], X), Y)
  np.testing.assert_allclose(got, plain - 3 * np.log(p / (p + q)), rtol=1e-4)


def test_a_representation_of_zeros_is_like_no_other_and_has_a_gradient():
  params_values, like, unlike = drawn(MLP, 0, 1, 2)
  params_values['dense1'] = jax.tree.map(jnp.zeros_like, params_values['dense1'])
  model = contrasted(MLP, 'logits', 3.0, 0.5, like, unlike)

  def losses(params):
    return model.loss(model.apply(params, X), Y)

  plain = MLP.loss(MLP.apply(params_values, X), Y)
  np.testing.assert_allclose(losses(params_values), plain + 3 * np.log(2), rtol=1e-6)
  result = jax.jit(jax.grad(lambda p: losses(p).sum()))(params_values)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(result))


class Dropping(nn.Module):
  """Dropout before the last layer."""

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.relu(nn.Dense(16, name='body')(x))
    x = nn.Dropout(0.5, deterministic=not train)(x)
    return nn.Dense(CLASSES, name='head')(x)


def test_models_that_stay_draw_no_random_numbers():
  one = models.from_flax(Dropping(), SHAPE)
  params = dict(zip((LEARNS, LIKE, UNLIKE), drawn(one, 0, 1, 2), strict=True))
  key = jax.random.key(5)
  model = contrasted(one, 'head', 1.0, 0.5, params[LIKE], params[UNLIKE])
  result = model.apply_train(params[LEARNS], X, key)

  def cosines(other):
    _, a = with_inputs_of('head', one.apply_train, params[LEARNS], X, key)
    _, b = with_inputs_of('head', one.apply, params[other], X)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / lengths

  np.testing.assert_allclose(result[1], cosines(LIKE), rtol=1e-5)
  np.testing.assert_allclose(result[2], cosines(UNLIKE), rtol=1e-5)
