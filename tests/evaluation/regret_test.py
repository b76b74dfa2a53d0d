"""Assignments beside the best ones in hindsight: by hand, and of centers of a run."""

import numpy as np

import fesem_jax as fj
from fesem_jax.evaluation import regret
from tests.support import helpers, reference

# Of five clients; no client has the last center, which would be the best of all.
LOSSES = np.array([
  [1.0, 3.0, 2.0, 0.0],  # Has the best one.
  [5.0, 2.5, 2.0, 0.0],  # Would lose 0.5 less with the third.
  [4.0, 4.0, 4.0, 0.0],  # All are equal: stays with its own.
  [2.0, 7.0, 2.0, 0.0],  # The first of two equal ones.
  [np.inf, 3.0, np.inf, 0.0],  # The others are not finite.
])  # fmt: skip
CHOICE = np.array([0, 1, 2, 1, 1])


def test_regret_and_margin_are_to_the_best_center_that_a_client_has():
  with np.errstate(invalid='raise'):
    found = regret.hindsight(LOSSES, CHOICE)
  assert (found.best.tolist(), found.best.dtype) == ([0, 2, 2, 0, 1], np.int32)
  assert found.regret.tolist() == [0, 0.5, 0, 5, 0]
  assert found.margin.tolist() == [1, -0.5, 0, -5, np.inf]


def test_where_all_clients_have_one_center_there_is_no_other():
  found = regret.hindsight(LOSSES[:4], np.full(4, 2))
  assert found.best.tolist() == [2] * 4
  assert found.regret.tolist() == [0] * 4
  assert np.isnan(found.margin).all()


def test_a_center_without_a_finite_loss_has_no_regret_to_be_counted():
  with np.errstate(invalid='raise'):
    found = regret.hindsight(np.array([[np.inf, np.inf], [1, 2]]), np.array([0, 1]))
  assert np.isnan(found.regret[0])
  assert found.regret[1] == 1


def test_losses_of_centers_of_a_run_are_those_of_a_float64_reference():
  local, data = helpers.local(hidden=()), helpers.federation([6, 3, 9, 5])
  fesem = fj.algorithms.build('fesem', local, num_clusters=2)
  result = fj.simulate(fesem, data, data, rounds=1, finetune_epochs=0)
  losses = fj.cohort_losses(local, result.deployed.centers, data)
  models = [reference.from_params(result.deployed.centers, k) for k in (0, 1)]
  want = [
    [reference.loss_and_gradient(model, *data.client(i))[0] for model in models]
    for i in range(4)
  ]
  np.testing.assert_allclose(losses, want, rtol=1e-4)
  found = regret.hindsight(losses, result.clients.cluster)
  np.testing.assert_array_equal(found.best, np.argmin(want, axis=1))
