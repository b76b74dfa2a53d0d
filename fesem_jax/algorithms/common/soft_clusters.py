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
  """One pull m [S, ...], factor [S] for each client that is pulled to all centers.

  It minimizes

    F_i(w) + strength / 2 sum_k u_ik |w - c_k|^2

  Up to a number that does not depend on w, the sum is U_i |w - m_i|^2, one pull to one
  model, of U_i = sum_k u_ik and m_i = sum_k u_ik c_k / U_i.

  Args:
    centers: [K, ...].
    pulls: [S, K] float32 u_ik, positive for some center of each client.
    strength: 0 leaves the pull out.
  """
  if not strength:
    return None
  total = pulls.sum(axis=1)
  shares = pulls / jnp.where(total > 0, total, 1.0)[:, None]
  return tree.mixtures(shares, centers), variable(strength / 2) * total


def means_of_all(
  trained: Trained, weights: jax.Array, centers: Params, mesh: Mesh | None
) -> Params:
  """[K, ...] means of kept models with weights [S, K], one center at a time.

  Clients that did not take part do not count, and a center without any weight stays.
  Sums over the chunks of training would have XLA copy the kept models at each chunk.
  """
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
  """Traffic of clients that receive K centers, and send a model and its K weights.

  A client computes the losses of all centers anew `every` rounds after it last did.
  """
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
