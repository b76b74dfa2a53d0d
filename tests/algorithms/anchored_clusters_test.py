"""Clusters of clients by what describes them at one fixed model, by hand."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common.anchored_clusters import (
  AnchoredClusters,
  with_new_clients,
)
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort
from tests.support import helpers

ANCHOR, KEY = {'w': jnp.array([[7.0, 7.0]])}, jax.random.key(0)


class Described(NamedTuple):
  """A rule by which clients are described as given."""

  described: Any
  seen: list[Any]
  threshold: float = 0.5
  local: LocalTraining = helpers.local()

  def describe(self, anchor, data, cohort, key):
    """What is given, whoever asks."""
    self.seen.append(anchor)
    return {'w': jnp.array(self.described)}


def test_clients_without_a_direction_join_another_time():
  # Client 0 is described by 0, client 3 by numbers whose squares are infinite.
  rule = Described([[1.0, 0.0], [0.0, 0.0], [3e19, 3e19]], [])
  none = AnchoredClusters(
    jnp.full(4, 3, jnp.int32), jnp.zeros(4, bool), {'w': jnp.zeros((4, 2))}, ANCHOR,
    jnp.zeros(3, jnp.int32), jnp.int32(0),
  )  # fmt: skip
  data, cohort = helpers.federation([4] * 4), Cohort(np.array([2, 0, 3]), False)
  found, fresh = with_new_clients(rule, none, data, cohort, jnp.ones(3, bool), KEY)
  assert found.joined.tolist() == [False, False, True, False]
  assert found.assignment.tolist() == [3, 3, 0, 3]
  assert found.gradients['w'].tolist() == [[0, 0], [0, 0], [1, 0], [0, 0]]
  assert found.sizes.tolist() == [1, 0, 0]
  assert int(found.number) == 1
  assert fresh.tolist() == [True, False, False]
  # Later a second client of nearly the same direction.
  later = rule._replace(described=[[9.0, 0.0], [2.0, 1.0], [0.0, 0.0]])
  found, fresh = with_new_clients(
    later, found, data, cohort, jnp.array([False, True, True]), KEY
  )
  assert found.joined.tolist() == [True, False, True, False]
  assert found.assignment.tolist() == [0, 3, 0, 3]
  assert found.gradients['w'].tolist() == [[2, 1], [0, 0], [1, 0], [0, 0]]
  assert found.sizes.tolist() == [2, 0, 0]
  assert fresh.tolist() == [False, False, False]
