"""Models and local training that a run refuses before it begins."""

import jax.numpy as jnp
import pytest

from fesem_jax import algorithms, models
from fesem_jax.models.model_checks import check_model
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
