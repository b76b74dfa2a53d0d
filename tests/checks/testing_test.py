"""`check_method` passes for a method, and fails for each way to break it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj


def _method(mean='weights', new_key=lambda key: key):
  model = fj.models.build('logistic', (8,), 2)
  local = fj.local_training(model, optax.sgd(0.1), batch_size=4)

  def step(shared, data, cohort, key):
    starts = fj.ClientModels(shared)
    trained = fj.train_cohort(local, starts, data, cohort, new_key(key))
    places = len(cohort.ids)
    weights = {
      'weights': trained.weights('by_examples'),
      'all_places': jnp.ones(places),
      'first': (jnp.arange(places) == 0) + 0.0,
    }[mean]
    weights = weights / weights.sum()
    means = jax.tree.map(lambda p: jnp.tensordot(weights, p, 1), trained.params)
    return fj.tree.expand(means), trained.info()

  return fj.Algorithm(
    local,
    lambda key, data: fj.tree.expand(model.init(key)),
    step,
    lambda shared, data: fj.ClientModels(shared),
  )


def _train():
  rng = np.random.default_rng(0)
  x, sizes = rng.normal(size=(60, 8)).astype(np.float32), np.array([12, 18, 10, 20])
  return fj.FederatedData.from_arrays(x, (x[:, 0] > 0).astype(int), sizes, scale=1.0)


def test_method_that_keeps_the_rules_passes():
  fj.testing.check_method(_method(), _train())


@pytest.mark.parametrize(
  ('fault', 'message'),
  [
    ({'new_key': lambda key: jax.random.key(0)}, 'key'),
    ({'mean': 'all_places'}, 'absent'),
    ({'mean': 'first'}, 'order'),
  ],
)
def test_broken_method_fails(fault, message):
  with pytest.raises(AssertionError, match=message):
    fj.testing.check_method(_method(**fault), _train())
