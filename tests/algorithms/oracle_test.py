"""The oracle: against float64, and as other methods whose clusters are right."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.types import Cohort
from fesem_jax.data import hold_out, with_true_groups
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.methods import (
  GROUPS,
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  reference_round,
)

TRUTH = np.array(GROUPS, np.int32)


def told(data, clusters):
  """The data with other true clusters, which the oracle is told."""
  info = ClientInfo(data.info.names, np.asarray(clusters))
  return with_true_groups(dataclasses.replace(data, info=info))


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_it_matches_a_float64_reference(weighting):
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build('oracle', local, weighting=weighting)
  state = initial(algorithm, data)
  first = matrix(state.centers)
  np.testing.assert_array_equal(first[0], first[1])  # One random model.
  other = jax.jit(local.model.init)(jax.random.key(1))
  state = state._replace(
    centers=jax.tree.map(lambda c, x: c.at[1].set(x), state.centers, other)
  )
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  cohort, means = np.array([5, 2, 0, 3]), [None] * 2
  key = jax.random.key(3)
  starts = [centers[TRUTH[i]] for i in cohort]
  ends = reference_round(local, data, starts, cohort, key)
  for k in (0, 1):
    mine = [j for j, i in enumerate(cohort) if TRUTH[i] == k]
    means[k] = np.average(
      [reference.flat(ends[j]) for j in mine], axis=0, weights=weights[cohort[mine]]
    )
  drawn = Cohort(cohort.astype(np.int32), everyone=False)
  state, info = jax.jit(algorithm.step)(state, data, drawn, key)
  got = [reference.flat(reference.from_params(state.centers, k)) for k in (0, 1)]
  assert_close(got, means)
  squared = [
    np.square(reference.flat(end) - means[TRUTH[i]]).sum()
    for i, end in zip(cohort, ends, strict=True)
  ]
  want = np.average(squared, weights=weights[cohort])
  assert_close(info.clusters.objective, want, rtol=1e-3)
  assert (int(info.trained), int(info.clusters.moved)) == (4, 0)
  used = algorithm.deployed(state, data)
  np.testing.assert_array_equal(used.clusters(), TRUTH)


def test_groups_travel_with_their_clients():
  data = told(federation(), ['b', 'a', 'c', 'a', 'b', 'b'])
  assert data.groups.count == 3
  np.testing.assert_array_equal(data.groups.ids, [1, 0, 2, 0, 1, 1])
  turned = data.reorder(np.array([2, 0, 1]), num_clients=4)
  np.testing.assert_array_equal(turned.groups.ids, [2, 1, 0, 0])
  assert turned.groups.count == 3
  for part in hold_out(data):
    np.testing.assert_array_equal(part.groups.ids, data.groups.ids)


def test_without_known_groups_there_is_no_oracle():
  unknown = helpers.federation(SIZES)
  info = ClientInfo(unknown.info.names)
  with pytest.raises(UserError, match='groups'):
    with_true_groups(dataclasses.replace(unknown, info=info))
