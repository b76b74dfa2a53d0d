"""FedNova against Wang et al.'s equations in float64, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.training import step_lengths
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  run,
  run_cohorts,
  unflatten,
)
from tests.support.nights import rest_by_night

RATE = 0.1


def norm(steps, rho):
  """|a_i|_1 of the paper, Section 4."""
  if rho == 0:
    return steps
  return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def local_training(w, like, batches, rho):
  velocity = np.zeros_like(w)
  for batch in batches:
    _, gradient = reference.loss_and_gradient(unflatten(w, like), *batch)
    velocity = rho * velocity + reference.flat(gradient)
    w = w - RATE * velocity
  return w


@pytest.mark.parametrize(
  ('rho', 'cohorts', 'devices'),
  rest_by_night([(0.0, [range(6)] * 3, 2), (0.9, [(0, 1), (2, 4), (3,), (1, 2)], 1)]),
)
def test_matches_float64_reference(rho, cohorts, devices):
  optimizer = optax.sgd(RATE, rho or None)
  local = helpers.local(epochs=2, devices=devices, optimizer=optimizer)
  data = federation()
  algorithm = algorithms.build('fed_nova', local)
  like = reference.from_params(initial(algorithm, data).params, 0)
  x = reference.flat(like)
  for number, cohort in enumerate(cohorts, 1):
    key, changes, norms = jax.random.fold_in(jax.random.key(9), number), [], []
    for i in cohort:
      batches = helpers.batches(data, local.schedule, i, key)
      norms.append(norm(len(batches), rho))
      changes.append((local_training(x, like, batches, rho) - x) / norms[-1])
    weights = np.array(SIZES)[list(cohort)]
    effective = np.average(norms, weights=weights)
    x = x + effective * np.average(changes, axis=0, weights=weights)
    if len(cohort) > 1:
      assert min(norms) < effective  # Else FedAvg would do.

  state, _ = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3)


def test_stragglers_are_those_of_fed_prox():
  data, local = federation(), helpers.local(epochs=4, hidden=())
  (_, nova), (_, prox) = (
    run(algorithms.build(name, local, straggler_fraction=0.5), data, rounds=2)
    for name in ('fed_nova', 'fed_prox')
  )
  assert [int(i.steps) for i in nova] == [int(i.steps) for i in prox]
  assert int(nova[0].steps) != int(nova[1].steps)


def test_lengths_of_steps_are_those_of_the_paper():
  local = helpers.local(optimizer=optax.sgd(RATE, 0.6))
  wanted = [RATE * norm(steps, 0.6) for steps in range(6)]
  assert_close(step_lengths.lengths(local, 5), wanted, rtol=1e-6)
  local = helpers.local()._replace(local_lr_schedule=lambda step: 1.0 / (step + 1))
  wanted = RATE * np.array([0, 1, 1 + 1 / 2, 1 + 1 / 2 + 1 / 3])
  assert_close(step_lengths.lengths(local, 3), wanted, rtol=1e-6)
  nesterov = helpers.local(optimizer=optax.sgd(RATE, 0.5, nesterov=True))
  wanted = RATE * np.array([0, 1.5, 1.5 + 1.75])  # g + rho v, v = g, then 1.5 g.
  assert_close(step_lengths.lengths(nesterov, 2), wanted, rtol=1e-6)


def biases_only(params):
  return jax.tree.map(lambda x: jnp.ndim(x) == 1, params)


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.adam(0.1),
    optax.sgd(0.0),
    optax.sgd(optax.cosine_decay_schedule(0.1, 10), 0.9),
    local_optimizer('momentum', 0.1, weight_decay=0.01),
    local_optimizer('sgd', 0.1, clip_norm=1.0),
    optax.chain(optax.masked(optax.scale(0.5), biases_only), optax.sgd(0.1)),
  ],
  ids=['adam', 'zero', 'schedule', 'decay', 'clipping', 'layers'],
)
def test_steps_must_add_up_gradients(optimizer):
  with pytest.raises(UserError, match='optimizer'):
    algorithms.build('fed_nova', helpers.local(optimizer=optimizer))
