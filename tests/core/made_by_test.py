"""Methods and models are recorded by what made them; wrong arguments are a sentence."""

import flax.linen as nn
import numpy as np
import optax
import pytest

import fesem_jax as fj
from tests.support import helpers

LOCAL = helpers.local(model='logistic')
FED_AVG = fj.algorithms.fed_avg(LOCAL)


@pytest.mark.parametrize('given', [LOCAL.model, nn.Dense(3), optax.sgd(0.1), None])
def test_a_method_is_made_of_local_training(given):
  with pytest.raises(
    fj.UserError, match=r'`local` is .* not a LocalTraining; make one'
  ):
    fj.algorithms.fesem(given, num_clusters=2)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: fj.wrappers.with_max_age(LOCAL, 3), '`method` is a LocalTraining'),
    (lambda: fj.algorithms.fed_avg(FED_AVG), '`local` is an Algorithm, not a Local'),
    (lambda: fj.algorithms.fesem(LOCAL, num_clusters='2'), "`num_clusters='2'` must"),
    (lambda: fj.algorithms.fesem(LOCAL, num_clusters=2.5), 'must be a whole number'),
    (lambda: fj.algorithms.fesem(LOCAL, prox_lambda=None), '`prox_lambda=None` must'),
    (lambda: fj.wrappers.with_max_age(FED_AVG, '3'), "`rounds='3'` must be a whole"),
    (lambda: fj.algorithms.build(fj.algorithms.fesem, LOCAL), '`name` is a function'),
    (lambda: fj.models.from_flax(nn.Dense, (6,)), '`module` is the class Dense; give'),
    (lambda: fj.models.from_flax(nn.Dense(3), 6), '`example_shape=6` must be a'),
    (lambda: fj.models.build('mlp', 6, 3), '`example_shape=6` must be a sequence'),
    (lambda: fj.compare([FED_AVG], (None, None), rounds=1), '`methods` is a list;'),
    (lambda: fj.compare({'a': LOCAL}, (None, None), rounds=1), 'a is a LocalTraining;'),
    (lambda: fj.compare({'a': fj.algorithms.fed_avg}, (None, None), rounds=1),
     'a is a function; give an Algorithm, or a function of hyperparameters'),
    (lambda: fj.local_training(LOCAL.model, optax.sgd(0.1), machine=fj.Machine(mesh=2)),
     '`mesh` is an int; give the devices'),
    (lambda: fj.simulate(
      fj.algorithms.fed_avg(LOCAL._replace(schedule=5)),
      *[helpers.federation([3, 4])] * 2, rounds=1), '`schedule` is an int, not a'),
  ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(call, message):
  with pytest.raises(fj.UserError, match=message):
    call()


def test_python_says_which_argument_is_missing_or_unknown():
  with pytest.raises(TypeError, match=r"fesem\(\) missing 1 required .*'local'"):
    fj.algorithms.fesem(num_clusters=2)
  with pytest.raises(TypeError, match="unexpected keyword argument 'clusters'"):
    fj.algorithms.fesem(LOCAL, clusters=2)


def test_numbers_may_be_of_numpy():
  made = fj.algorithms.fesem(
    LOCAL, num_clusters=np.int64(2), prox_lambda=np.float32(0.5)
  )
  head = 'made by=fesem(num_clusters, prox_lambda)'
  assert made.made_by.values[:2] == (head, 'num_clusters=int64 2')


def test_a_method_of_ones_own_is_made_by_nothing():
  own = fj.Algorithm(LOCAL, FED_AVG.init, FED_AVG.step, FED_AVG.deployed)
  assert own.made_by is None
  assert FED_AVG.made_by.values == ('made by=fed_avg()',)
