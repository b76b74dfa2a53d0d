"""HypoCluster(K), also known as IFCA: each client picks the model it likes best.

Mansour et al., "Three Approaches for Personalization with Applications to
Federated Learning", 2020 (HypCluster); Ghosh et al., "An Efficient Framework
for Clustered Federated Learning", NeurIPS 2020 (IFCA).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import em, tree
from fesem_jax.base import (
  Algorithm,
  Cohort,
  Deployed,
  Params,
  check_at_least,
  check_choice,
)
from fesem_jax.batching import Schedule
from fesem_jax.local import WEIGHTINGS, LocalTraining, cohort_losses, train_cohort


class HypoClusterState(NamedTuple):
  """State of HypoCluster."""

  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32


def hypo_cluster(
  local: LocalTraining,
  *,
  num_clusters: int = 4,
  variant: str = 'model',
  weighting: str = 'uniform',
  init_restarts: int = 20,
) -> Algorithm:
  """Builds HypoCluster(K).

    r_i <- argmin_k F_i(c_k)                            for i in the cohort
    w_i <- SGD from c_{r_i} on client i
    c_k <- mean of w_i over the clients with r_i = k

  Clients are assigned by their training examples, never by test ones. The
  centers start as different random models.

  Args:
    local: how clients train.
    num_clusters: K.
    variant: 'model' averages models after local training; 'gradient' averages
      one full-batch gradient step.
    weighting: 'uniform' (IFCA) or 'by_examples' (HypCluster).
    init_restarts: draws of K random models; kept is the draw whose best models
      have the least mean training loss over clients.

  Raises:
    UserError: on an option outside its range.
  """
  check_choice('variant', variant, ('model', 'gradient'))
  check_choice('weighting', weighting, WEIGHTINGS)
  check_at_least(1, num_clusters=num_clusters, init_restarts=init_restarts)
  if variant == 'gradient':
    local = local._replace(schedule=Schedule(batch_size=0, steps=1))

  def init(key, data):
    em.check_num_clusters(num_clusters, data)
    everyone = Cohort(jnp.arange(data.num_clients), everyone=True)

    def draw(key):
      return jax.vmap(local.model.init)(jax.random.split(key, num_clusters))

    def mean_loss(key):
      best = cohort_losses(local, draw(key), data, everyone).min(axis=1)
      return jnp.where(data.sizes() > 0, best, 0.0).sum()

    keys = jax.random.split(key, init_restarts)
    centers = draw(keys[jax.lax.map(mean_loss, keys).argmin()])
    losses = cohort_losses(local, centers, data, everyone)
    return HypoClusterState(centers, losses.argmin(axis=1).astype(jnp.int32))

  def add_to_own(sums, trained, best, centers):
    distance = tree.row_distances(trained.params, tree.take(centers, best))
    return sums.add(trained, best, distance, weighting), None

  def step(state, data, cohort, key):
    old = tree.rows_of(state.assignment, cohort)
    losses = cohort_losses(local, state.centers, data, cohort)
    best = losses.argmin(axis=1).astype(jnp.int32)
    trained = train_cohort(
        local, state.centers, best, data, cohort, key, keep=False,
        fold=add_to_own, sums=em.Sums.zeros(state.centers, weighting),
    )  # fmt: skip
    centers = tree.mean_of(trained.sums.weighted, state.centers)
    new = jnp.where(trained.took_part(), best, old)
    assignment = tree.with_rows(state.assignment, cohort, new)
    value = trained.sums.objective(state.centers, centers)
    info = em.round_info(
      trained, num_clusters, value, state.assignment, assignment, data
    )
    return HypoClusterState(centers, assignment), info

  def deployed(state):
    return Deployed(state.centers, row=state.assignment)

  return Algorithm(init, step, deployed)
