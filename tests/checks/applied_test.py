"""Rules are applied where users load data and run methods, and silenced by id."""

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.checks import examples, rules
from fesem_jax.utils.errors import UserError


@pytest.fixture
def logged(monkeypatch):
  texts = []
  monkeypatch.setattr(rules, 'warn_once', texts.append)
  return texts


def _texts(ignore_checks):
  method = examples.request().algorithm
  data = examples.data(lambda x: 100 * x, test=examples.split(seed=0))
  run = fj.simulate(
    method, *data, rounds=1, finetune_epochs=0, ignore_checks=ignore_checks
  )
  return [text[:5] for text in run.summary['checks']]


def test_simulate_applies_rules_but_those_that_are_ignored(logged):
  assert {'FJ101', 'FJ103'} <= set(_texts(()))
  assert {'FJ101', 'FJ103'} <= {text[:5] for text in logged}
  assert 'FJ101' not in _texts(('FJ101',))


def test_simulate_names_clients_without_training_and_patience_without_clusters(logged):
  data, method = examples.data(), examples.request('ditto').algorithm
  options = {'clients_per_round': 1, 'patience': 1}
  fj.simulate(method, *data, rounds=1, finetune_epochs=0, **options)
  assert [text[:5] for text in logged] == ['FJ302', 'FJ404']
  assert '3 of 4 clients' in logged[-1]


def test_federate_applies_rules_of_data_and_clients(logged):
  arrays = {
    'x': np.random.default_rng(0).normal(size=(80, 3)) * 100,
    'y': np.arange(80) % 2,
    'client': np.arange(80) // 20,
    'cluster': np.arange(80) // 40,
  }
  pool = fj.data.from_arrays(**arrays)
  fj.data.federate(pool, 'iid', num_clients=4)
  assert {text[:5] for text in logged} == {'FJ101', 'FJ106'}
  fj.data.federate(pool, 'iid', num_clients=4, ignore_checks=('FJ101', 'FJ106'))
  assert len(logged) == 2


def test_unknown_id_is_refused():
  with pytest.raises(UserError, match='ignore_checks'):
    rules.find(examples.data(), ('FJ999',))
