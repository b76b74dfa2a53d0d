"""Models that clients cannot train are refused in one sentence, before training."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fesem_jax import algorithms, models
from fesem_jax.core.local_training import local_training
from fesem_jax.core.types import Model
from fesem_jax.models.model_checks import check_model
from fesem_jax.run.simulation import simulate
from fesem_jax.utils.errors import UserError
from tests.support import helpers


def kernel(key, num_classes=helpers.CLASSES):
  return jax.random.normal(key, (*helpers.SHAPE, num_classes))


def with_part(part):
  """A linear model whose layer holds one more parameter."""
  return Model(
    lambda key: {'logits': {'kernel': kernel(key), 'part': part()}},
    lambda params, x: x @ params['logits']['kernel'],
  )


NO_PARAMETERS = Model(lambda key: {}, lambda params, x: x[:, :3])
BARE = Model(kernel, lambda params, x: x @ params)


@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (NO_PARAMETERS, 'has no parameters'),
    (BARE, 'init gives a single array; it must give a dict of layers'),
    (with_part(lambda: jnp.ones(3, jnp.int32)), 'logits/part is int32, .*; keep const'),
    (
      with_part(lambda: jnp.ones(3, jnp.bfloat16)),
      'logits/part is bfloat16, but parameters are trained and averaged in float32; .*'
      'by its dtype, not its param_dtype',
    ),
    (with_part(lambda: jnp.ones((0, 5))),
     r'part has shape \(0, 5\), which holds no nu'),
    (with_part(lambda: 0.5), 'logits/part is float, not an array'),
    (Model(lambda key: [kernel(key, 2)], lambda params, x: x @ params[0]),
     r'two examples have outputs of shape \(2, 2\), not \(2, 3\) as data of 3 classes'),
    (with_part(lambda: jnp.ones(3))._replace(apply=lambda params, x: (x, x)),
     'apply gives tuple, not an array of float32 logits'),
    (
      Model(
        lambda key: {'logits': {'kernel': kernel(key)}},
        lambda params, x: (x @ params['logits']['kernel']).astype(jnp.int32),
      ),
      'apply gives int32, not an array of float32 logits',
    ),
    (
      Model(
        lambda key: {'logits': {'kernel': kernel(key)}},
        lambda params, x: (x @ params['logits']['kernel']).astype(jnp.bfloat16),
      ),
      'apply gives bfloat16, not an array of float32 logits',
    ),
    (
      with_part(lambda: jnp.ones(3))._replace(
        metrics=(('hits', lambda logits, y: (logits.argmax(axis=1) == y).mean()),)
      ),
      r'the metric hits gives shape \(\) for two examples',
    ),
  ],
)  # fmt: skip
def test_models_that_cannot_be_trained_are_one_sentence(model, message):
  with pytest.raises(UserError, match=f'^mine:? .*{message}'):
    check_model(model, helpers.SHAPE, helpers.CLASSES, named='mine')


class Stacked(nn.Module):
  """Has a kernel of three axes, and a layer that computes in bfloat16."""

  @nn.compact
  def __call__(self, x):
    heads = nn.vmap(
      nn.Dense, variable_axes={'params': 0}, split_rngs={'params': True},
      in_axes=None, out_axes=1, axis_size=2,
    )  # fmt: skip
    x = heads(4, dtype=jnp.bfloat16)(x).reshape(x.shape[0], -1)
    return nn.Dense(helpers.CLASSES)(x)


def test_sound_models_pass():
  flax = models.from_flax(Stacked(), helpers.SHAPE)
  kernels = [x.ndim for x in jax.tree.leaves(flax.init(jax.random.key(0)))]
  assert 3 in kernels
  listed = Model(lambda key: [kernel(key)], lambda params, x: x @ params[0])
  measured = with_part(lambda: jnp.ones(3))._replace(
    metrics=(('label', lambda logits, y: 1.0 * y),)
  )
  whole = with_part(lambda: np.ones(3))
  for model in (flax, listed, whole, measured, helpers.local().model):
    check_model(model, helpers.SHAPE, helpers.CLASSES)


def test_simulate_refuses_logits_of_other_classes_before_it_writes(tmp_path):
  data = helpers.federation([4, 4], classes=5)
  algorithm = algorithms.build('fed_avg', helpers.local())
  with pytest.raises(UserError, match=r'`model`: .*not \(2, 5\) as data of 5 classes'):
    simulate(algorithm, data, data, rounds=1, workdir=tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


class Ending(nn.Module):
  """A linear model with a function at its end."""

  end: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x):
    return self.end(nn.Dense(helpers.CLASSES)(x))


@pytest.mark.parametrize(
  ('end', 'task', 'said'),
  [
    (nn.softmax, 'classification', 'softmax'),
    (lambda z: nn.softmax(z).reshape(-1, helpers.CLASSES), 'classification', 'softmax'),
    (lambda z: jnp.exp(z) / jnp.exp(z).sum(axis=-1, keepdims=True), 'classification',
     'softmax'),
    (nn.sigmoid, 'multilabel', 'sigmoid'),
    (nn.sigmoid, 'regression', ''),
    (nn.log_softmax, 'classification', ''),
    (nn.relu, 'classification', ''),
    (lambda z: z / 2.0, 'classification', ''),
  ],
)  # fmt: skip
def test_models_that_give_probabilities_are_told_of(end, task, said, caplog):
  model = models.from_flax(Ending(end), helpers.SHAPE, task=task)
  check_model(model, helpers.SHAPE, helpers.CLASSES, task)
  whole = f'`model` ends with a {said}, and its loss has one too; models give logits: '
  assert caplog.messages == ([f'{whole}leave the {said} out.'] if said else [])
  caplog.clear()
  own = model._replace(loss=lambda outputs, y: -jnp.log(outputs).sum(axis=-1))
  check_model(own, helpers.SHAPE, helpers.CLASSES, task)
  assert not caplog.messages


def test_models_of_other_examples_are_named():
  data = helpers.federation([4, 5])
  for name, shape, options in (
    ('logistic', (5,), {}),
    ('mlp', (2, 2), {'hidden': (3,)}),
  ):
    model = models.build(name, shape, helpers.CLASSES, **options)
    method = algorithms.build('fed_avg', helpers.local()._replace(model=model))
    with pytest.raises(
      UserError, match=r'`model` cannot take examples of shape \(6,\)'
    ):
      simulate(method, data, data, rounds=1)


@pytest.mark.parametrize('name', ['fed_avg', 'fesem', 'fed_per', 'fed_rep'])
@pytest.mark.parametrize('model', [NO_PARAMETERS, BARE], ids=['none', 'bare'])
def test_methods_refuse_models_without_layers(name, model):
  data = helpers.federation([4, 4])
  local = local_training(model, helpers.local().optimizer)
  with pytest.raises(UserError, match='`model`'):
    simulate(algorithms.build(name, local), data, data, rounds=1)


class Dropping(nn.Module):
  """Drops where it is told to train."""

  rate: float = 0.5

  @nn.compact
  def __call__(self, x, train=False):
    return nn.Dense(3)(nn.Dropout(self.rate, deterministic=not train)(x))


class Unnamed(nn.Module):
  @nn.compact
  def __call__(self, x, rate):
    return nn.Dense(3)(rate * x)


class Unheard(nn.Module):
  """Is told when it trains and does not tell its Dropout."""

  @nn.compact
  def __call__(self, x, train=False):
    return nn.Dense(3)(nn.Dropout(0.5, deterministic=True)(x))


class Noisy(nn.Module):
  """Draws whether or not it trains."""

  @nn.compact
  def __call__(self, x, train=False):
    noise = jax.random.normal(self.make_rng('noise'), x.shape)
    return nn.Dense(3)(x + noise)


class Attending(nn.Module):
  @nn.compact
  def __call__(self, x):
    attend = nn.MultiHeadDotProductAttention(
      2, qkv_features=4, dropout_rate=0.1, deterministic=False
    )
    return nn.Dense(3)(attend(x[..., None]).reshape(x.shape[0], -1))


class Empty(nn.Module):
  def __call__(self, x):
    return x[:, :3]


class NnxNet(nnx.Module):
  def __init__(self, rngs, dropout, rate=0.5):
    self.drop = nnx.Dropout(rate, **dropout)
    self.dense = nnx.Linear(*helpers.SHAPE, 3, rngs=rngs)

  def __call__(self, x):
    return self.dense(self.drop(x))


class NnxTold(nnx.Module):
  """Overrules what `train()` and `eval()` say."""

  def __init__(self, rngs, deterministic):
    self.drop = nnx.Dropout(0.5, rngs=rngs)
    self.dense = nnx.Linear(*helpers.SHAPE, 3, rngs=rngs)
    self.deterministic_ = deterministic

  def __call__(self, x):
    return self.dense(self.drop(x, deterministic=self.deterministic_))


class NnxUnnamed(nnx.Module):
  def __init__(self, rngs):
    self.dense = nnx.Linear(*helpers.SHAPE, 3, rngs=rngs)

  def __call__(self, x, *, rate):
    return self.dense(rate * x)


RANDOM = 'has Dropout or another layer that draws random numbers'


@pytest.mark.parametrize(
  ('module', 'message'),
  [(nn.Sequential([nn.Dense(3), nn.Dropout(0.5, deterministic=False)]), RANDOM),
   (nn.Sequential([nn.Dense(3), nn.Dropout(0.5)]), RANDOM),
   (Unheard(), f'^Unheard {RANDOM}'), (Noisy(), f'^Noisy {RANDOM}'),
   (Attending(), f'^Attending {RANDOM}'),
   (Unnamed(), "^Unnamed.__call__ must take the examples and, .*'rate'"),
   (Empty(), '^Empty has no parameters'),
   (nn.Dense(3, param_dtype=jnp.bfloat16), '^Dense: the parameter bias is bfloat16'),
   (lambda rngs: NnxNet(rngs, {}), '^NnxNet has Dropout without random numbers; ma'),
   (lambda rngs: NnxTold(rngs, True), f'^NnxTold {RANDOM}'),
   (lambda rngs: NnxTold(rngs, False), f'^NnxTold {RANDOM}'),
   (NnxUnnamed, "^NnxUnnamed.__call__ must take the examples and, .*'rate'")],
)  # fmt: skip
def test_modules_that_training_does_not_support_are_one_sentence(module, message):
  with pytest.raises(UserError, match=message):
    models.from_flax(module, helpers.SHAPE)


def test_dropout_of_rate_zero_is_no_dropout():
  model = models.from_flax(Dropping(rate=0.0), helpers.SHAPE)
  check_model(model, helpers.SHAPE, 3)
  assert model.apply_train is None

  def none(rngs):
    return NnxNet(rngs, {'rngs': rngs}, rate=0.0)

  assert models.from_flax(none, helpers.SHAPE).apply_train is None
  # It needs no random numbers either.
  without = models.from_flax(lambda rngs: NnxNet(rngs, {}, rate=0.0), helpers.SHAPE)
  assert without.apply_train is None
