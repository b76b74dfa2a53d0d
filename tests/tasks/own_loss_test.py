"""The loss on test examples, which is the model's own."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax import tasks
from fesem_jax.analysis import tables, tuning
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.evaluation import curves
from fesem_jax.run.results.frames import Recorded
from tests.support import helpers
from tests.support.nights import rest_by_night

SIZES = np.array([7, 5, 9])


def absolute_error(outputs, y):
  return jnp.abs(outputs - y).mean(axis=-1)


def regression(seed):
  x = np.random.default_rng(seed).normal(size=(sum(SIZES), 4)).astype(np.float32)
  y = 5 * x.sum(axis=1, keepdims=True) + 1
  return FederatedData.from_arrays(x, y, SIZES, num_classes=1, task='regression')


def simulated(data, model, folder, method='fed_avg'):
  """The result of a run, and the run as it was saved."""
  local = fj.local_training(model, optax.sgd(0.05))
  algorithm = fj.algorithms.build(method, local)
  result = fj.simulate(algorithm, *data, rounds=2, workdir=folder)
  return result, fj.load_run(folder, model)


@pytest.fixture(scope='module')
def trained_run(tmp_path_factory):
  data = regression(0), regression(1)
  model = fj.models.build('logistic', (4,), 1, task='regression')
  folder = tmp_path_factory.mktemp('own') / 'run'
  return data, *simulated(data, model._replace(loss=absolute_error), folder)


def test_the_loss_of_a_regression_is_the_models_own(trained_run):
  (_, test), result, run = trained_run
  errors = []
  for i, name in enumerate(test.info.names):
    x, y = test.client(i)
    guess = run.predict(x, client=name).astype(np.float64)
    errors.append(np.abs(guess - y).mean())
  actual = result.summary['deployed']
  assert actual['micro_loss'] == pytest.approx(np.average(errors, weights=SIZES), 1e-5)
  assert actual['macro_loss'] == pytest.approx(np.mean(errors), 1e-5)
  columns = result.clients
  np.testing.assert_allclose(columns['deployed_loss'], errors, rtol=1e-5)
  assert result.summary['global_loss'] == actual['micro_loss']


def test_a_loss_of_its_own_ranks_models_of_a_regression(trained_run):
  summary, history = trained_run[1].summary, trained_run[1].history
  assert tasks.of(summary) is tasks.from_scores(summary['deployed']) is tasks.OWN_LOSS
  assert tasks.of(summary).primary.label == 'loss'
  # The one has the least loss, the other one the least squared error.
  worse = {'micro_loss': 9.0, 'micro_rmse': 0.0}
  tried = {0.1: summary, 1.0: summary | {'deployed': summary['deployed'] | worse}}
  points = [{'learning_rate': rate} for rate in tried]
  outcomes = [[Recorded('', 0, {}, scores, [], None)] for scores in tried.values()]
  choice = tuning.choose(points, outcomes, tuning.Search({}, [0]))
  assert choice.values == {'learning_rate': 0.1}
  of_worse = {k: history[-1][k] | worse for k in ('deployed', 'finetuned')}
  result = curves.reports([*history, history[-1] | of_worse], tasks.OWN_LOSS)
  assert result['best']['deployed']['micro_loss'] < 9


def cross_entropy_of(run, test):
  """Mean cross entropy of the test examples, in float64 from the probabilities."""
  losses = []
  for i, name in enumerate(test.info.names):
    x, y = test.client(i)
    chances = run.predict(x, client=name, probabilities=True).astype(np.float64)
    losses.append(-np.log(chances[np.arange(len(y)), y]))
  return np.concatenate(losses).mean()


# A mixture of models, and a method that trains with a penalty.
@pytest.mark.parametrize('method', rest_by_night(['fed_em', 'moon']))
def test_other_tasks_are_ranked_as_before_and_have_the_loss_as_well(method, tmp_path):
  data = helpers.federation([4, 6]), helpers.federation([5, 3], seed=1)
  model = helpers.local().model
  twice = model._replace(loss=lambda z, y: 2 * model.loss(z, y))
  result, run = simulated(data, twice, tmp_path / 'run', method)
  actual = result.summary['deployed']
  assert actual['micro_loss'] == pytest.approx(2 * cross_entropy_of(run, data[1]), 1e-5)
  assert tasks.of(result.summary) is tasks.CLASSIFICATION
  shown = [name for name in tables.score_columns(result.frames.runs) if 'loss' in name]
  assert not shown
