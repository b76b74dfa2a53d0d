"""What is decided about a cohort before any of its clients trains."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import Corruption
from fesem_jax.training.batch_losses import OwnStep
from fesem_jax.training.chunk import plan
from fesem_jax.training.objective import Correction, Objective
from fesem_jax.training.reduction import Reduction, mean_of_models
from tests.support import helpers

DATA = helpers.federation([4, 2, 3, 5])
BAD = Corruption(np.array([True, False, False, False]), 'sign_flip')


def decided(data=DATA, own=False, mode='on', reduction=Reduction(), **objective):
  """The plan of four clients that start from one model, or each from its own."""
  local = helpers.local(chunk=2)
  local = local._replace(shared_start=mode, clients_per_shared_start=3)
  stack = shapes_of(local, 4 if own else 1)
  start = ClientModels(own=stack) if own else ClientModels(stack)
  return plan(local, start, data, 4, Objective(**objective), reduction)


def shapes_of(local, count):
  keys = jax.random.split(jax.random.key(0), count)
  return jax.eval_shape(jax.vmap(local.model.init), keys)


MODELS = shapes_of(helpers.local(), 1)


@pytest.mark.parametrize(
  ('objective', 'shares'),
  [
    ({}, True),
    ({'penalty': 0.1}, True),
    ({'correction': Correction(MODELS, MODELS)}, False),
    ({'penalty': 0.1, 'anchor': ClientModels(MODELS)}, False),
    ({'step': OwnStep(lambda params: (), lambda *args: args)}, False),
  ],
)
def test_kernels_that_clients_change_as_a_whole_are_their_own(objective, shares):
  found = decided(**objective)
  assert bool(found.together.kernels) == shares
  assert found.together.count == (3 if shares else 2)


def test_models_are_formed_unless_only_their_mean_is_asked_for():
  mean = mean_of_models('uniform')
  bad = dataclasses.replace(DATA, corruption=BAD)
  for options, unformed in (
    ({'reduction': mean}, True),
    ({}, False),
    ({'reduction': mean, 'mode': 'off'}, False),
    ({'reduction': mean, 'data': bad}, False),  # Lies are told about whole models.
  ):
    found = decided(**options)
    assert found.unformed is unformed
    assert found.at_a_time == (3 if unformed else 2)


def test_models_of_ones_own_are_trained_where_they_lie_if_they_are_kept():
  assert decided(own=True).in_place
  assert not decided().in_place
  assert not decided(own=True, reduction=Reduction(keep=False)).in_place


def test_corrections_are_overwritten_only_by_methods_that_replace_them():
  assert not decided().replaces_correction
  assert not decided(correction=Correction(MODELS, MODELS)).replaces_correction
  replaced = Correction(MODELS, MODELS, True, None, True)
  assert decided(correction=replaced).replaces_correction
