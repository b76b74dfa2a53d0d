"""Clients that use a weighted mixture of models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.evaluation import evaluate
from fesem_jax.models.mixture import as_one_model
from tests.support import helpers, reference
from tests.support.methods import assert_close

WEIGHTS = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8], [0.4, 0.6, 0.0]])
SIZES = [6, 5, 9, 4]


def centers_of(local):
  return helpers.first_models(local, 3, 3)


def probabilities(model, x):
  hidden = x.reshape(len(x), -1).astype(np.float64)
  for i, (kernel, bias) in enumerate(model):
    hidden = hidden @ kernel + bias
    hidden = hidden if i == len(model) - 1 else np.maximum(hidden, 0)
  odds = np.exp(hidden - hidden.max(axis=1, keepdims=True))
  return odds / odds.sum(axis=1, keepdims=True)


def test_the_logits_are_the_logarithm_of_the_mixed_probabilities():
  local = helpers.local()
  centers = centers_of(local)
  used = ClientModels(centers, mixture=jnp.asarray(WEIGHTS, jnp.float32))
  model, of_clients, layers = as_one_model(local.model, used)
  params = of_clients.params(4)
  x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
  each = [probabilities(reference.from_params(centers, k), x) for k in range(3)]
  for i in range(4):
    got = model.apply(jax.tree.map(lambda p, i=i: p[i], params), x)
    assert_close(np.exp(got), np.einsum('k,kbl->bl', WEIGHTS[i], each), rtol=1e-4)
  assert layers == ('models',)
  assert used.clusters().tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(('devices', 'epochs'), [(1, 0), (2, 2)])
def test_a_mixture_of_one_model_is_measured_as_that_model(devices, epochs):
  train, test = helpers.federation(SIZES, seed=1), helpers.federation([9] * 4)
  local = helpers.local(chunk=3, devices=devices)
  choice = jnp.array([1, 0, 2, 1])
  centers, key = centers_of(local), jax.random.key(0)
  alone = ClientModels(centers, choice)
  mixed = ClientModels(centers, mixture=jax.nn.one_hot(choice, 3))
  counts = [
    jax.jit(
      lambda used, train, test: evaluate.evaluate_clients(
        used, local, train, test, key, epochs
      )
    )(used, train, test)
    for used in (alone, mixed)
  ]
  for a, b in zip(counts[0][:2], counts[1][:2], strict=True):
    np.testing.assert_array_equal(a.sums.predicted, b.sums.predicted)
    np.testing.assert_array_equal(a.sums.correct, b.sums.correct)
  assert not np.asarray(counts[1][2]).any()  # No fine-tuning failed.
