"""The oracle: against float64, and as other methods whose clusters are right."""

import dataclasses

import numpy as np
import pytest

from fesem_jax.core.client_info import ClientInfo
from fesem_jax.data import hold_out, with_true_groups
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import (
  SIZES,
  federation,
)


def told(data, clusters):
  """The data with other true clusters, which the oracle is told."""
  info = ClientInfo(data.info.names, np.asarray(clusters))
  return with_true_groups(dataclasses.replace(data, info=info))


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
