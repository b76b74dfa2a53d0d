"""Methods on regression and sequences, from training to saved models."""

import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.core.batching import Schedule
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.utils.errors import UserError
from tests.support.nights import rest_by_night
from tests.support.runs import simulate
from tests.tasks.properties_test import FEATURES, LENGTH, MODELS, TOKENS

SIZES, GROUPS = [7, 5, 9, 6], [0, 1, 0, 1]


def regression(seed):
  """Two groups with linear functions of their own."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(sum(SIZES), FEATURES)).astype(np.float32)
  group = np.repeat(GROUPS, SIZES)
  weights = np.array([[1.0, 2.0, -1.0], [-2.0, 0.5, 1.0]])
  y = (x * weights[group]).sum(axis=1, keepdims=True) + 0.5
  return federation(x, y, 'regression', 1)


def sequences(seed):
  """Two groups that count up or down, of different lengths."""
  rng = np.random.default_rng(seed)
  first = rng.integers(0, TOKENS, (sum(SIZES), 1))
  way = np.where(np.repeat(GROUPS, SIZES)[:, None], -1, 1)
  whole = (first + way * np.arange(LENGTH + 1)) % TOKENS
  y = whole[:, 1:].copy()
  y[rng.random(len(y)) < 0.5, -2:] = -1
  return federation(whole[:, :-1].astype(np.float32), y, 'sequence', TOKENS)


def federation(x, y, task, outputs):
  info = ClientInfo(np.array([f'c{i}' for i in range(len(SIZES))]), np.array(GROUPS))
  return FederatedData.from_arrays(
    x, y, np.array(SIZES), num_classes=outputs, task=task, info=info
  )


DATA = {'regression': regression, 'sequence': sequences}


def local(task, devices=1, batch_size=4):
  mesh, schedule = sharding.client_mesh(devices), Schedule(batch_size, 2)
  return LocalTraining(MODELS[task], optax.sgd(0.05), schedule, 2, mesh)


@pytest.mark.parametrize('task', rest_by_night(DATA))
def test_a_run_is_measured_saved_and_read_back(task, tmp_path):
  train, test = DATA[task](0), DATA[task](1)
  if task == 'sequence':
    test.y[test.offsets[1] : test.offsets[2]] = -1  # Padding alone.
  chosen = local(task, devices=2)

  def simulated(rounds):
    algorithm = algorithms.build('fesem', chosen, num_clusters=2)
    options = {'workdir': tmp_path / 'run', 'finetune_epochs': 1}
    return simulate(algorithm, train, test, rounds=rounds, **options)

  simulated(2)
  result = simulated(3)  # Goes on from its checkpoint.
  summary = result.summary
  assert summary['task'] == task
  of_task = dict.fromkeys(fj.tasks.TASKS[task].columns)
  assert list(summary['deployed']) == [*(of_task | {'micro_loss': 0, 'macro_loss': 0})]
  run = fj.load_run(tmp_path / 'run', MODELS[task])
  columns = run.clients
  primary = fj.tasks.TASKS[task].primary.name
  assert {f'deployed_{primary}', f'finetuned_{primary}'} <= {*columns}
  errors, padded = [], int(task == 'sequence')
  assert summary['clients_without_test_examples'] == padded
  for i, name in enumerate(train.info.names):
    x, y = test.client(i)
    guess = run.predict(x, client=name)
    if task == 'sequence':
      known = y >= 0
      error = (guess == y)[known].mean() if known.any() else np.nan
    else:
      error = np.sqrt(np.square(guess - y).mean())
    errors.append(error)
  np.testing.assert_allclose(columns[f'deployed_{primary}'], errors, rtol=1e-4)
  macro = summary['deployed'][f'macro_{primary}']
  assert macro == pytest.approx(np.nanmean(errors), rel=1e-4)
  if task == 'regression':
    with pytest.raises(UserError, match='a regression has none'):
      run.predict(x, client=name, probabilities=True)
    assert 'deployed_accuracy' not in columns
  else:
    assert run.predict(x, client=name, probabilities=True).shape == (
      len(x), LENGTH, TOKENS,
    )  # fmt: skip


@pytest.mark.nightly
def test_targets_of_two_axes_are_split_by_client():
  data = sequences(0), sequences(1)
  algorithm = algorithms.build('fed_avg', local('sequence', devices=2))
  result = [
    simulate(algorithm, *data, rounds=1, data_placement=placement).summary
    for placement in ('replicated', 'sharded')
  ]
  assert result[1]['data_placement'] == 'sharded'
  for name, value in result[0]['deployed'].items():
    assert result[1]['deployed'][name] == pytest.approx(value, rel=1e-5)


def test_a_model_for_another_task_is_refused():
  data = regression(0)
  algorithm = algorithms.build('fed_avg', local('sequence'))
  with pytest.raises(UserError, match='model'):
    simulate(algorithm, data, data, rounds=1)
