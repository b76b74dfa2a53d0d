"""Models and local training that a run refuses before it begins."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms, models
from fesem_jax.models.model_checks import check_model, trace_local
from fesem_jax.run.simulation import simulate
from fesem_jax.utils.errors import UserError
from tests.support import helpers

MODEL = models.build('logistic', helpers.SHAPE, helpers.CLASSES)


@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (MODEL._replace(init=lambda key: {'w': jnp.ones(3, jnp.bfloat16)}), 'parameter w'),
    (models.build('logistic', helpers.SHAPE, 2), 'two examples'),
    (models.build('logistic', helpers.SHAPE, 3, task='regression'), 'made for regress'),
  ],
)
def test_models_that_do_not_fit_are_refused(model, message):
  with pytest.raises(UserError, match=f'mine: {message}'):
    check_model(model, helpers.SHAPE, helpers.CLASSES, named='mine')


def test_simulate_refuses_a_model_before_it_writes(tmp_path):
  data = helpers.federation([4, 4], classes=5)
  algorithm = algorithms.build('fed_avg', helpers.local())
  with pytest.raises(UserError, match='model'):
    simulate(algorithm, data, data, rounds=1, workdir=tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_errors_of_functions_of_the_user_pass_through():
  def fails(*args):
    raise ZeroDivisionError

  data, local = helpers.federation([4, 4]), helpers.local()
  broken = optax.GradientTransformation(local.optimizer.init, fails)
  for changes in (
    {'model': local.model._replace(loss=fails)},
    {'model': local.model._replace(apply=fails)},
    {'optimizer': broken},
  ):
    with pytest.raises(ZeroDivisionError):
      trace_local(local._replace(**changes), data)


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
  listed = MODEL._replace(
    init=lambda key: [np.ones((*helpers.SHAPE, helpers.CLASSES), np.float32)],
    apply=lambda params, x: x @ params[0],
  )
  for model in (models.from_flax(Stacked(), helpers.SHAPE), listed, MODEL):
    check_model(model, helpers.SHAPE, helpers.CLASSES)
