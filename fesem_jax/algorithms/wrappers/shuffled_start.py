"""Wrong first clusters, to study their correction."""

import jax.numpy as jnp

from fesem_jax.algorithms.common.wrapped import (
  check_wrappable,
  inner,
  num_clusters,
  replaced,
)
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone, shuffled
from fesem_jax.server import em
from fesem_jax.utils.ranges import Fraction


@recorded
def with_shuffled_start(method: Algorithm, probability: Fraction) -> Algorithm:
  """Wraps a method with centers whose state keeps the clients' models.

  Args:
    method: a method with centers.
    probability: for each client to be put into a random cluster after the first
      clustering; centers are then the unweighted means of these clusters' models.

  Raises:
    UserError: on a method without centers.
  """
  check_wrappable(method, 'with_shuffled_start')

  def init(key, data, cohort=None):
    state = method.init(key, data, cohort)
    here, count = inner(state), num_clusters(state)
    first = everyone(data) if cohort is None else cohort
    own = tree.rows_of(here.assignment, first)
    own = shuffled(key, data, first, own, count, probability)
    assignment = tree.with_rows(here.assignment, first, own)
    ones = ((data.sizes() > 0) & (assignment < count)).astype(jnp.float32)
    centers = em.m_step(
      here.client_params, assignment, ones, here.centers, method.local.mesh
    )
    return replaced(state, assignment=assignment, centers=centers)

  return method._replace(init=init)
