"""Confusion matrices of clusters are scikit-learn's over the clients of each."""

import jax
import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from fesem_jax import algorithms
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.evaluation.confusion import confusion, num_matrices
from fesem_jax.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, SEQUENCE
from tests.support import helpers, runs

SIZES = (5, 9, 0, 3, 7, 40)
CLUSTERS = np.array([0, 2, 1, 0, 2, 2])


def federation():
  return helpers.federation(SIZES)


def models_of(count, local):
  keys = jax.random.split(jax.random.key(3), count)
  return jax.vmap(local.model.init)(keys)


def by_scikit_learn(local, data, params, groups, count):
  """The matrices [K, L, L] of the models `params` [M, ...] of each client."""
  found = np.zeros((count, data.num_classes, data.num_classes), int)
  for i, k in enumerate(groups):
    x, y = data.client(i)
    if len(y):
      guess = local.model.apply(tree.unstack(params, i), x).argmax(axis=-1)
      found[k] += confusion_matrix(y, guess, labels=range(data.num_classes))
  return found


def test_matrices_of_clusters_are_those_of_scikit_learn():
  data, local = federation(), helpers.local(devices=2, chunk=2)
  centers = models_of(4, local)  # No client deploys the last one.
  used = ClientModels(centers, np.asarray(CLUSTERS, np.int32))
  found = jax.jit(lambda used, data: confusion(used, local, data))(used, data)
  params = jax.tree.map(lambda x: x[CLUSTERS], centers)
  want = by_scikit_learn(local, data, params, CLUSTERS, 4)
  np.testing.assert_array_equal(found, want)
  assert found[3].sum() == 0
  assert found[1].sum() == 0  # Its client has no examples.
  assert found.sum() == sum(SIZES)


def test_without_clusters_there_is_one_matrix_of_all_own_models():
  data, local = federation(), helpers.local(chunk=4)
  own = models_of(len(SIZES), local)
  found = confusion(ClientModels(own=own), local, data)
  want = by_scikit_learn(local, data, own, np.zeros(len(SIZES), int), 1)
  np.testing.assert_array_equal(found, want)


def test_a_mixture_is_counted_by_the_heaviest_model_and_classified_by_all():
  data, local = federation(), helpers.local(chunk=4)
  centers, rng = models_of(2, local), np.random.default_rng(1)
  weights = rng.dirichlet((1, 1), len(SIZES)).astype(np.float32)
  found = confusion(ClientModels(centers, mixture=weights), local, data)
  want = np.zeros_like(found)
  for i, own in enumerate(weights):
    x, y = data.client(i)
    if not len(y):
      continue
    each = [local.model.apply(tree.unstack(centers, k), x) for k in (0, 1)]
    p = sum(w * np.asarray(jax.nn.softmax(z)) for w, z in zip(own, each, strict=True))
    np.add.at(want[own.argmax()], (y, p.argmax(axis=-1)), 1)
  np.testing.assert_array_equal(found, want)


def test_tasks_without_classes_and_too_many_classes_have_none():
  used = ClientModels(own={'w': np.zeros((6, 2))})
  assert num_matrices(used, CLASSIFICATION, 100) == 1
  assert num_matrices(used, CLASSIFICATION, 101) == 0
  many = ClientModels({'w': np.zeros((1000, 2))}, np.zeros(6, np.int32))
  assert num_matrices(many, CLASSIFICATION, 10) == 1000
  assert num_matrices(many, CLASSIFICATION, 40) == 0
  for task in (REGRESSION, SEQUENCE, MULTILABEL):
    assert num_matrices(used, task, 5) == 0


@pytest.mark.slow
def test_the_portrait_of_a_run_counts_what_its_record_measures(tmp_path):
  method = algorithms.build('fesem', helpers.local(devices=2), num_clusters=2)
  result = runs.simulated(method, rounds=1, workdir=tmp_path, make_portrait=True)
  found = result.portrait['confusion']
  deployed = result.summary['deployed']
  right = found.diagonal(axis1=1, axis2=2).sum()
  assert right / found.sum() == pytest.approx(deployed['micro_accuracy'])
  sizes = np.bincount(result.clients.cluster, result.clients.test_examples)
  np.testing.assert_array_equal(found.sum(axis=(1, 2))[: len(sizes)], sizes)
  with np.load(tmp_path / 'clients.npz') as arrays:
    np.testing.assert_array_equal(arrays['confusion'], found)
