"""Confusion matrices of the deployed models of each cluster's clients."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run import figure_data
from fesem_jax.run.figure_data import confused
from fesem_jax.run.results.deployed_models import DeployedModels, Examples
from tests.support import helpers, runs

SIZES = (5, 9, 0, 3, 7, 40)
CLUSTERS = np.array([0, 2, 1, 0, 2, 2])


def federation():
  return helpers.federation(SIZES)


def models_of(count, local):
  keys = jax.random.split(jax.random.key(3), count)
  return jax.vmap(local.model.init)(keys)


def found_of(used, data, local):
  """[K, L, L] of models, with clients of the data in another order."""
  order = np.random.default_rng(0).permutation(len(SIZES))
  models = DeployedModels.of(used, data.info.names, Examples.of(data), local.model)
  result = confused(models, data.reorder(order), np.argsort(order))
  return result.get('confusion')


def matrices(local, data, params, groups, count):
  """The matrices [K, L, L] of the models `params` [M, ...] of each client."""
  result = np.zeros((count, data.num_classes, data.num_classes), int)
  for i, k in enumerate(groups):
    x, y = data.client(i)
    if len(y):
      guess = local.model.apply(tree.unstack(params, i), x).argmax(axis=-1)
      np.add.at(result[k], (y, guess), 1)
  return result


@pytest.mark.parametrize('standardization', [None, (np.ones(6), np.full(6, 3.0))])
def test_matrices_are_of_the_clients_of_each_cluster(standardization):
  data, local = federation(), helpers.local()
  info = dataclasses.replace(data.info, standardization=standardization)
  data = dataclasses.replace(data, info=info)
  centers = models_of(4, local)  # No client deploys the last one.
  result = found_of(ClientModels(centers, CLUSTERS), data, local)
  params = jax.tree.map(lambda x: x[CLUSTERS], centers)
  np.testing.assert_array_equal(result, matrices(local, data, params, CLUSTERS, 4))
  assert result[3].sum() == 0
  assert result[1].sum() == 0  # Its client has no examples.
  assert result.sum() == sum(SIZES)


def test_other_tasks_models_and_too_many_classes_have_none(monkeypatch):
  data, local = federation(), helpers.local()
  personal = ClientModels(personal=models_of(len(SIZES), local))
  assert found_of(personal, data, local) is None
  weights = np.full((len(SIZES), 2), 0.5, np.float32)
  mixture = ClientModels(models_of(2, local), mixture=weights)
  assert found_of(mixture, data, local) is None
  used = ClientModels(models_of(1, local))
  assert found_of(used, data, local).sum() == sum(SIZES)
  monkeypatch.setattr(figure_data, '_MAX_CLASSES', data.num_classes - 1)
  assert found_of(used, data, local) is None
  monkeypatch.undo()
  assert found_of(used, dataclasses.replace(data, task='regression'), local) is None


@pytest.mark.slow
def test_the_portrait_of_a_run_counts_what_its_record_measures(tmp_path):
  method = algorithms.build('fesem', helpers.local(devices=2), num_clusters=2)
  result = runs.simulated(method, rounds=1, workdir=tmp_path, make_portrait=True)
  actual = result.portrait['confusion']
  deployed = result.summary['deployed']
  right = actual.diagonal(axis1=1, axis2=2).sum()
  assert right / actual.sum() == pytest.approx(deployed['micro_accuracy'])
  sizes = np.bincount(result.clients.cluster, result.clients.test_examples)
  np.testing.assert_array_equal(actual.sum(axis=(1, 2))[: len(sizes)], sizes)
  with np.load(tmp_path / 'clients.npz') as arrays:
    np.testing.assert_array_equal(arrays['confusion'], actual)
