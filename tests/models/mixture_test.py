"""Clients that use a weighted mixture of models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.evaluation import evaluate
from fesem_jax.models.mixture import as_one_model
from fesem_jax.run import figure_data
from fesem_jax.tasks import CLASSIFICATION
from tests.support import helpers, reference
from tests.support.methods import assert_close

WEIGHTS = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8], [0.4, 0.6, 0.0]])
SIZES = [6, 5, 9, 4]


def centers_of(local):
  return jax.jit(jax.vmap(local.model.init))(jax.random.split(jax.random.key(3), 3))


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


def test_fine_tuning_trains_the_models_and_not_the_weights():
  data, local = helpers.federation([9] * 4), helpers.local(chunk=2)
  used = ClientModels(centers_of(local), mixture=jnp.asarray(WEIGHTS, jnp.float32))
  before, after, _ = evaluate.evaluate_clients(
    used, local, data, data, jax.random.key(0), 40
  )
  was, now = (
    evaluate.scores(totals, CLASSIFICATION)['micro_accuracy']
    for totals in (before, after)
  )
  assert now > was


def test_unseen_clients_and_figures_need_not_know_of_mixtures():
  data, local = helpers.federation(SIZES), helpers.local()
  used = ClientModels(centers_of(local), mixture=jnp.asarray(WEIGHTS, jnp.float32))
  chosen = evaluate.models_of_unseen(used, jnp.ones(4, bool), local, data)
  assert chosen.mixture is None
  assert chosen.choice.shape == (4,)
  method = Algorithm(local, lambda *_: used, lambda *_: None, lambda state, data: state)
  found = figure_data.draw(method, used, data, jax.random.key(1), np.arange(len(SIZES)))
  np.testing.assert_array_equal(found['assignment'], WEIGHTS.argmax(axis=1))
  assert np.isfinite(found['coordinates']).all()


def test_a_mixture_has_no_single_model():
  local = helpers.local()
  used = ClientModels(centers_of(local), mixture=jnp.asarray(WEIGHTS, jnp.float32))
  with pytest.raises(ValueError, match='mixture'):
    used.params(4)


def test_a_mixture_that_is_drawn_weighs_its_models_alike():
  local = helpers.local()
  used = ClientModels(centers_of(local), mixture=jnp.asarray(WEIGHTS, jnp.float32))
  model, _, _ = as_one_model(local.model, used)
  params = jax.jit(model.init)(jax.random.key(0))
  np.testing.assert_allclose(np.exp(params['log_weights']), [1 / 3] * 3, rtol=1e-6)
  shapes = jax.tree.map(jnp.shape, (params['models'], used.shared))
  assert shapes[0] == shapes[1]
  first, second, _ = params['models']['dense0']['kernel']
  assert (first != second).any()
  # Its layers do not lie where products of dense layers are looked up.
  assert model.apply_with is None
