"""FLUX: clusters clients once, by moments of their features."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common.centers import deployed, reassigned
from fesem_jax.algorithms.common.cluster_averaging import (
  check_everyone,
  train_and_average,
)
from fesem_jax.core import traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params
from fesem_jax.server import descriptors
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, Positive


class FluxState(NamedTuple):
  centers: Params  # [K, ...]; rows of clusters that do not exist are unused
  assignment: jax.Array  # [M] int32; 0 before clients are clustered
  rounds: jax.Array  # [] int32 rounds done
  described_by: Params  # [1, ...] the model whose features describe clients
  placing: descriptors.Placing  # of clients whose labels are not known
  numbers: jax.Array  # [] int32 numbers in a descriptor


@recorded
def flux(
  local: LocalTraining, *, warmup_rounds: Count = 4, eps_scaling: Positive = 1.0
) -> Algorithm:
  """Builds FLUX (Fenoglio et al., "FLUX: Efficient Descriptor-Driven Clustered
  Federated Learning under Arbitrary Distribution Shifts", NeurIPS 2025).

    w    <- FedAvg in the first `warmup_rounds`; then, once,
    z_s  <- features of example s by w, projected on the same C directions for all
    d_i  <- means and standard deviations of the z_s of client i, and of each class
    r_i  <- DBSCAN of the d_i, each group of moments scaled to 0..1 over all clients

  and then w_i <- SGD from c_{r_i}, c_k <- mean of w_i over r_i = k, where all c_k start
  as w. The radius of DBSCAN is the knee of the distances to nearest neighbors; a client
  farther from all others is a cluster of one. New clients, and those that dropped
  out in the last round of the warmup, go to the nearest cluster by the first two
  groups, which need no labels. All clients take part.

  Args:
    warmup_rounds: rounds before clients are clustered.
    eps_scaling: factor of the radius of the clustering; more gives fewer clusters.

  Raises:
    UserError: on another task than classification, a model without a dense layer, or
      partial participation.
  """
  local.check_no_statistics('flux')
  task = local.model.task.name
  check(task == CLASSIFICATION.name, f'task: flux needs a classification, not {task}')

  def init(key, data):
    start, most = local.model.init(key), len(data.info.names)
    components = descriptors.size_of_features(local, data)[1]
    placing = descriptors.Placing.in_one_cluster(most, components)
    numbers = jnp.int32(2 * (data.num_classes + 1) * components)
    assignment, rounds = jnp.zeros(data.num_clients, jnp.int32), jnp.int32(0)
    centers, average = tree.repeat(start, most), tree.expand(start)
    return FluxState(centers, assignment, rounds, average, placing, numbers)

  def step(state, data, cohort, key):
    check_everyone(cohort, 'flux')
    assignment, rounds = state.assignment, state.rounds + 1
    args = local, deployed(state, data), assignment, data, cohort, key, 'by_examples'
    centers, trained, info = train_and_average(*args)
    counts = trained.took_part()

    def described():
      model = tree.take(centers, jnp.zeros(1, jnp.int32))
      moments = descriptors.moments(local, model, data, cohort)
      reach = moments.reach(counts)
      return moments.descriptors(reach), reach

    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(described))
    described_by = jax.lax.cond(rounds == warmup_rounds, described, lambda: nothing)
    counts &= jnp.isfinite(described_by[0]).all(axis=(1, 2))
    ids, exists = jnp.asarray(data.client_ids), data.sizes() > 0
    updates = (*described_by, counts, ids, exists, assignment)
    state = state._replace(centers=centers, rounds=rounds)
    return state, info._replace(updates=updates)

  def between(state, info):
    updates, info = info.updates, info._replace(updates=None)
    if int(state.rounds) != warmup_rounds:
      return state, info
    values, reach, counts, ids, exists, before = processes.on_host(updates)
    if not counts.any():
      return state, info
    most, average = len(info.clusters.sizes), tree.unstack(state.centers, 0)
    assignment, placing = descriptors.by_descriptors(
      values, counts, ids, eps_scaling, reach, most
    )
    after, centers = np.where(exists, assignment, before), tree.repeat(average, most)
    state = state._replace(centers=centers, assignment=after, placing=placing)
    state = state._replace(described_by=tree.expand(average))
    return state, info._replace(clusters=reassigned(info.clusters, before, after))

  def unseen_models(state, data):
    model, cohort = state.described_by, everyone(data)
    moments = descriptors.moments(local, model, data, cohort)
    return ClientModels(state.centers, state.placing.nearest(moments))

  functions, sent = (init, step, deployed, between), _traffic(local, warmup_rounds)
  return Algorithm(local, *functions, traffic=sent, unseen_models=unseen_models)


def _traffic(local: LocalTraining, warmup_rounds: int) -> traffic.Traffic:
  """One model each way, and once after the warmup a descriptor."""
  size = traffic.bytes_of_model(local)

  def round_costs(numbers, drawn):
    describes = drawn.number == warmup_rounds + 1
    extra = int(numbers) * traffic.NUMBER if describes else 0
    return traffic.Sent(size, size + extra, int(describes))

  return traffic.Traffic(round_costs, inputs=lambda state: state.numbers, model=size)
