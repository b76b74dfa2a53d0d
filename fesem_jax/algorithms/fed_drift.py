"""FedDrift: clients with rising loss start models; similar ones merge."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import MaxClusters, deployed
from fesem_jax.algorithms.common.cluster_averaging import (
  check_everyone,
  train_and_average,
)
from fesem_jax.core import sharding, sums, traffic, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.server import concept_drift
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.trained import weights_by
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, NotNegative


class FedDriftState(NamedTuple):
  centers: Params  # [K, ...] c_k; rows of models that are not in use do not matter
  assignment: jax.Array  # [M] int32 r_i
  client_losses: jax.Array  # [M] float32 least loss at the beginning of the time step
  last_used: jax.Array  # [K] int32 last time step of each model; -1: not in use
  rounds: jax.Array  # [] int32 rounds done


@recorded
def fed_drift(
  local: LocalTraining,
  *,
  max_clusters: MaxClusters = 0,
  drift_delta: NotNegative = 1.0,
  check_every: Count = 5,
  start_alone: bool = True,
) -> Algorithm:
  """Builds FedDrift (Jothimurugesan et al., "Federated Learning under Distributed
  Concept Drift", AISTATS 2023).

  A time step is `check_every` rounds. At the beginning of each except the first,

    r_i  <- argmin_k F_i(c_k);  l_i <- F_i(c_{r_i})             over the models in use
    r_i  <- a new model, which starts as c_{r_i}, if l_i > delta + the last step's l_i
    L_jk <- loss of model j on the examples of cluster k
    D_jk <- max(L_jk - L_jj, L_kj - L_kk, 0)
    models merge into their mean by complete linkage while the least D_jk < delta

  and in every round,

    w_i  <- SGD from c_{r_i} on client i
    c_k  <- sum_i alpha_i w_i over the clients with r_i = k

  with alpha_i = n_i / sum n_j over these clients. A new model takes the place of one
  that is not in use, or else of the least recently used; if clients use all K, its
  client keeps r_i. All clients take part; one that drops out at the beginning of a time
  step keeps its model.

  Args:
    max_clusters: K; 0 is the number of clients.
    drift_delta: delta, in units of the loss.
    check_every: rounds of a time step.
    start_alone: whether each client has a separate model in the first time step, or
      all share one. All models start as the same random one.

  Raises:
    UserError: on partial participation, or fewer models than clients that start alone.
  """

  def init(key, data):
    num_clients, start = len(data.info.names), tree.expand(local.model.init(key))
    count = max_clusters or num_clients
    room = count >= num_clients or not start_alone
    check(room, 'max_clusters: fewer than the clients; give start_alone=False')
    begin = num_clients if start_alone else 1  # Models in use.
    assignment = jnp.argsort(jnp.argsort(jnp.asarray(data.client_ids)))
    return FedDriftState(
      centers=tree.take(start, jnp.zeros(count, jnp.int32)),
      assignment=jnp.minimum(assignment, begin - 1).astype(jnp.int32),
      client_losses=cohort_losses(local, start, data)[:, 0],
      last_used=jnp.where(jnp.arange(count) < begin, 0, -1).astype(jnp.int32),
      rounds=jnp.int32(0),
    )

  def next_time_step(state, data, cohort, key):
    centers, assignment, before, last_used, rounds = state
    sizes, ids = data.sizes(), jnp.asarray(data.client_ids)
    losses = cohort_losses(local, centers, data, cohort)
    losses = jnp.where((last_used >= 0)[None], losses, jnp.inf)
    sent = local.arrived(key, data, cohort.ids)
    sent &= (sizes > 0) & jnp.isfinite(losses).any(axis=1)
    # A number for each client and model: small enough to be whole on every device.
    losses, sent = sharding.on_all_devices((losses, sent), local.mesh)
    weights = (sizes > 0) * weights_by('by_examples', sizes, data.weights)
    weights = weights.astype(jnp.float32)
    clients = concept_drift.Clients(losses, assignment, before, sent, weights, ids)
    number = rounds // variable(check_every)
    models = concept_drift.decide(clients, last_used, number, variable(drift_delta))
    centers = tree.put(centers, models.new, tree.take(centers, models.best))
    centers = sums.weighted_mean(centers, models.into, models.weights, centers)
    state = state._replace(assignment=models.assignment, client_losses=models.loss)
    return state._replace(centers=centers, last_used=models.last_used)

  def step(state, data, cohort, key):
    check_everyone(cohort, 'fed_drift')
    before = state.assignment
    begins = (state.rounds > 0) & (state.rounds % variable(check_every) == 0)
    state = jax.lax.cond(
      begins, lambda: next_time_step(state, data, cohort, key), lambda: state
    )
    centers, _, info = train_and_average(
      local, deployed(state, data), before, data, cohort, key, 'by_examples'
    )
    return state._replace(centers=centers, rounds=state.rounds + 1), info

  return Algorithm(local, init, step, deployed, traffic=_traffic(local, check_every))


def _traffic(local: LocalTraining, check_every: int) -> traffic.Traffic:
  """One model each way, and each `check_every` rounds all in use, with their losses."""
  size, loss = traffic.bytes_of_model(local), traffic.NUMBER

  def in_use(state):
    return (state.last_used >= 0).sum()

  def round_costs(in_use, drawn):
    compares = drawn.number > 1 and (drawn.number - 1) % check_every == 0
    count = int(in_use) if compares else 0
    return traffic.Sent((count + 1) * size, size + count * loss, count)

  return traffic.Traffic(
    round_costs, lambda n: (0, n * loss), in_use, size, extras='losses of models'
  )
