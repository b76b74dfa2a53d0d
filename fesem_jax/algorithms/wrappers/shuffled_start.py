"""Wrong first clusters, to study what corrects them."""

import jax.numpy as jnp

from fesem_jax.algorithms.common.wrapped import inner, num_clusters, replaced
from fesem_jax.algorithms.wrappers.reseeding import check_stack
from fesem_jax.clustering import em
from fesem_jax.cohorts.sampling import everyone, shuffled
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.utils.errors import check_share


def with_shuffled_start(method: Algorithm, probability: float) -> Algorithm:
  """Wraps a method with centers whose state keeps the clients' models.

  Args:
    method: a method with centers.
    probability: for each client to be put into a random cluster after the first
      clustering; centers are then the means of these clusters.

  Raises:
    UserError: on a probability outside of [0, 1], or, when it starts, where the models
      of all clients are not on the devices.
  """
  check_share(1, probability=probability)

  def init(key, data, cohort=None):
    state = method.init(key, data, cohort)
    check_stack(state, 'with_shuffled_start')
    here, count = inner(state), num_clusters(state)
    assignment = shuffled(
      key, data, everyone(data), here.assignment, count, probability
    )
    ones = (data.sizes() > 0).astype(jnp.float32)
    centers = em.m_step(
      here.client_params, assignment, ones, here.centers, method.local.mesh
    )
    return replaced(state, assignment=assignment, centers=centers)

  return method._replace(init=init)
