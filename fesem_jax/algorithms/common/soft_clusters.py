"""Clients that belong to all centers, with a weight for each."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import sums, traffic, tree
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.training.trained import Trained


def pull_to_all(
  centers: Params, pulls: jax.Array, strength: float
) -> tuple[Params, jax.Array] | None:
  """One pull m_i [S, ...], factor [S] in place of the pulls u_ik [S, K] to all centers.

  strength / 2 sum_k u_ik |w - c_k|^2 = factor |w - m_i|^2 + constant
  factor = strength / 2 sum_k u_ik;  m_i = sum_k u_ik c_k / sum_k u_ik
  """
  if not strength:
    return None
  total = pulls.sum(axis=1)
  shares = pulls / jnp.where(total > 0, total, 1.0)[:, None]
  return tree.mixtures(shares, centers), variable(strength / 2) * total


def means_of_all(
  trained: Trained, weights: jax.Array, centers: Params, mesh: Mesh | None
) -> Params:
  """[K, ...] means of kept models with weights [S, K], one center at a time."""
  weights = jnp.where(trained.took_part()[:, None], weights, 0.0)
  only = jnp.zeros(weights.shape[0], jnp.int32)

  def mean(k: int) -> Params:
    center = tree.take(centers, jnp.array([k]))
    return sums.weighted_mean(trained.params, only, weights[:, k], center, mesh)

  means = map(mean, range(weights.shape[1]))
  return jax.tree.map(lambda *each: jnp.concatenate(each), *means)


def all_centers_and_weights(
  local: LocalTraining, num_clusters: int, every: int
) -> traffic.Traffic:
  """K centers down, a model and K weights up; losses anew after `every` rounds."""
  size = traffic.bytes_of_model(local)

  def of_round(known, drawn):
    estimated, rounds = known
    due = rounds - np.asarray(estimated)[drawn.ids] >= every
    passes = np.where(due, num_clusters, 0)
    up = size + num_clusters * traffic.NUMBER
    return traffic.Sent(num_clusters * size, up, passes)

  return traffic.Traffic(
    of_round,
    known=lambda state: (state.estimated, state.rounds),
    model=size,
  )
