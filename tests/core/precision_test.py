"""Precision of products: whose is chosen, and whose is always float32's."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.tree import expand
from fesem_jax.evaluation.evaluate import evaluate_clients
from fesem_jax.training.batch_losses import Batch
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import mean_of_models
from tests.support import helpers
from tests.support.methods import federation
from tests.support.nights import rest_by_night

IMAGES = (6, 6)


def precisions(fn, *args):
  """How many products of a function have which precision, by its name."""
  result = helpers.product_precisions(jax.make_jaxpr(fn)(*args).jaxpr)
  assert all(p is not None and p[0] == p[1] for p in result)
  names = [p[0].name.lower() for p in result]
  return {name: names.count(name) for name in sorted(set(names))}


def of_method(name, options, local):
  """The products of a method's start, round and evaluation."""
  data, key = federation(), jax.random.key(0)
  local = helpers.with_precise_init(local)
  algorithm = algorithms.build(name, local, **options)
  state = jax.eval_shape(algorithm.init, key, data)

  def evaluate(state, data, key):
    used = algorithm.deployed(state, data)
    return evaluate_clients(used, algorithm.local, data, data, key, 0)

  start = precisions(algorithm.init, key, data)
  step = precisions(algorithm.step, state, data, helpers.everyone(data), key)
  return start, step, precisions(evaluate, state, data, key)


# Of a model by layers and of a mixture; properties_test.py looks at starts and rounds.
@pytest.mark.parametrize('name', ['fed_per', 'fed_em'])
def test_every_product_of_an_evaluation_says_its_precision(name):
  # What says none would have the default, which is an accelerator's fastest.
  with jax.default_matmul_precision('default'):
    *_, result = of_method(name, {}, helpers.local(chunk=3))
  assert result.keys() == {'highest'}


def of_gradient(local):
  """How many products the gradient of a batch has, in all the forms of its layers."""
  x, y = np.zeros((4, 6), np.float32), np.zeros(4, np.int32)

  def gradient(params):
    return jax.grad(Batch(local.model, x, y, np.ones(4)).loss)(params)

  params = helpers.first_model(local)
  with jax.default_matmul_precision('highest'):
    return precisions(gradient, params)['highest']


@pytest.mark.parametrize('precision', rest_by_night(['high', 'default']))
def test_only_local_training_takes_the_chosen_precision(precision):
  exact = helpers.local(chunk=3)
  local, count = exact._replace(precision=precision), of_gradient(exact)
  for name, options, gradients in (
    ('fed_avg', {}, 1),
    ('fesem', {'num_clusters': 2}, 1),
    ('fed_dane', {}, 2),  # Those of a whole client too.
  ):
    result, all_highest = (of_method(name, options, each) for each in (local, exact))
    for program, as_highest in zip(result, all_highest, strict=True):
      assert sum(program.values()) == as_highest['highest']
    start, step, evaluation = result
    assert start.get(precision) == (count if name == 'fesem' else None)
    assert step[precision] == gradients * count
    assert step['highest'] > 0  # Sums.
    assert evaluation.keys() == {'highest'}


def test_losses_that_decide_stay_in_float32():
  data, local = federation(), helpers.local()._replace(precision='default')
  centers = expand(helpers.first_model(local))
  result = precisions(
    lambda models: cohort_losses(local, models, data, helpers.everyone(data)), centers
  )
  assert result == {'highest': 2}


@pytest.mark.parametrize('chunk', [1, 3])
@pytest.mark.parametrize('shared_start', rest_by_night(['off', 'on']))
def test_every_form_of_a_layer_takes_it(chunk, shared_start):
  data = helpers.federation([4, 3, 5], shape=IMAGES)
  local = helpers.local(chunk=chunk, shape=IMAGES, model='small_cnn')
  local = local._replace(precision='high', shared_start=shared_start)

  def train(start, key):
    used = ClientModels(start)
    cohort = helpers.everyone(data)
    return train_cohort(
      local, used, data, cohort, key, mean_of_models('uniform', used.shared)
    )

  start = expand(helpers.first_model(local))
  result = precisions(train, start, jax.random.key(1))
  # Two convolutions of two forms and two dense layers, forward and backward.
  assert result.pop('high') > 15
  # Large arrays of one model are added without a product.
  assert result.keys() <= {'highest'}
