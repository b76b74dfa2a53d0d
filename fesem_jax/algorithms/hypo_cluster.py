"""HypoCluster(K), also known as IFCA: each client picks the model it likes best.

Mansour et al., "Three Approaches for Personalization with Applications to
Federated Learning", 2020 (HypCluster); Ghosh et al., "An Efficient Framework
for Clustered Federated Learning", NeurIPS 2020 (IFCA, Algorithm 1).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.aggregation import server_optimizers
from fesem_jax.aggregation.server_optimizers import ServerOptimizer
from fesem_jax.algorithms.common.centers import check_num_clusters, round_info
from fesem_jax.algorithms.fed_sgd import one_gradient_step
from fesem_jax.clustering import em
from fesem_jax.cohorts.sampling import everyone, sample_clients
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.training.client_losses import cohort_losses, least_loss
from fesem_jax.training.cohort import WEIGHTINGS, train_cohort
from fesem_jax.utils.errors import check_at_least, check_choice


class HypoClusterState(NamedTuple):
  """State of HypoCluster."""

  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32 what each client chose when it last took part
  server: Any = ()  # of the server optimizer


def hypo_cluster(
  local: LocalTraining,
  *,
  num_clusters: int = 4,
  variant: str = 'model',
  weighting: str = 'uniform',
  init_restarts: int = 20,
  init_rounds: int = 2,
  init_clients: int = 24,
  server_optimizer: ServerOptimizer = None,
) -> Algorithm:
  """Builds HypoCluster(K).

    r_i <- argmin_k F_i(c_k)                            for i in the cohort
    w_i <- SGD from c_{r_i} on client i
    c_k <- mean of w_i over the clients with r_i = k

  or, with `variant='gradient'` (option I of IFCA's Algorithm 1), gamma the local
  learning rate and m the clients of the round whose gradients arrived,

    c_k <- c_k - (gamma / m) * sum of grad F_i(c_k) over the clients with r_i = k

  The divisor is m and not the size of the cluster: a center that a share s of the
  clients chose takes a step of gamma * s along their mean gradient. In the paper's
  analysis and its authors' code all clients take part in every round; here m counts
  those of the round, so that the step does not depend on how many are drawn.

  Clients are assigned by their training examples, never by test ones. What a client
  deploys is the center of least training loss as the centers are now, whether or
  not it was drawn lately.

  From most draws of K random models two groups of clients end up sharing a center
  for good, so several draws are tried for a few rounds on a sample of clients, and
  the best centers are kept. The published start of IFCA is one draw, untried:
  init_restarts = 1 and init_rounds = 0.

  Args:
    local: how clients train.
    num_clusters: K.
    variant: 'model' averages models after local training; 'gradient' takes one
      full-batch gradient of each client, see above.
    weighting: 'uniform' (IFCA) or 'by_examples' (HypCluster): n_i in place of 1 in
      means, sums and m.
    init_restarts: draws of K random models, each trained for `init_rounds`; kept
      are the centers whose best ones have the least mean training loss over the
      sampled clients.
    init_rounds: rounds of this method before draws are compared; 0 compares the
      random models themselves.
    init_clients: clients of that sample.
    server_optimizer: moves each center by a step along the mean change of its clients
      (FedOpt) instead of to their mean; draws are compared without it.

  Raises:
    UserError: on an option outside its range.
  """
  check_choice('variant', variant, ('model', 'gradient'))
  check_choice('weighting', weighting, WEIGHTINGS)
  check_at_least(
    1,
    num_clusters=num_clusters,
    init_restarts=init_restarts,
    init_clients=init_clients,
  )
  check_at_least(0, init_rounds=init_rounds)
  given, local = local, one_gradient_step(local) if variant == 'gradient' else local

  def one_round(local, optimizer, centers, of_server, data, cohort, key):
    starts = ClientModels(centers, least_loss(local, centers, data, cohort))
    trained = train_cohort(
      local,
      starts,
      data,
      cohort,
      key,
      keep=False,
      fold=add_to_own,
      sums=em.Sums.zeros(centers),
    )
    of_clusters = trained.sums.clients
    if variant == 'gradient':  # Divided by the weight of all clients of the round.
      weight = jnp.where(of_clusters.weight > 0, of_clusters.weight.sum(), 0.0)
      of_clusters = of_clusters._replace(weight=weight)
    moved = server_optimizers.step(optimizer, of_server, centers, of_clusters)
    return moved, starts.choice, trained

  def init(key, data):
    check_num_clusters(num_clusters, data)
    sound = local._replace(dropout_rate=0.0)
    sample_key = prng_streams.fold(key, prng_streams.SAMPLE)
    sample = sample_clients(sample_key, data, init_clients, local.mesh)

    def attempt(key):
      draw_key, train_key = jax.random.split(key)
      centers = jax.vmap(local.model.init)(jax.random.split(draw_key, num_clusters))

      def again(i, centers):
        round_key = jax.random.fold_in(train_key, i)
        (centers, _), *_ = one_round(sound, None, centers, (), data, sample, round_key)
        return centers

      centers = jax.lax.fori_loop(0, init_rounds, again, centers)
      best = cohort_losses(local, centers, data, sample).min(axis=1)
      total = jnp.where(data.sizes(sample.ids) > 0, best, 0.0).sum()
      return jnp.where(jnp.isfinite(total), total, jnp.inf), centers

    def better(best, key):
      tried = attempt(key)

      def choose(a, b):
        return jnp.where(tried[0] <= best[0], a, b)

      return jax.tree.map(choose, tried, best), None

    keys = jax.random.split(prng_streams.fold(key, prng_streams.DRAWS), init_restarts)
    like = jax.eval_shape(attempt, keys[0])[1]
    none = jnp.inf, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    (_, centers), _ = jax.lax.scan(better, none, keys)
    assignment = least_loss(local, centers, data, everyone(data))
    return HypoClusterState(
      centers, assignment, server_optimizers.init(server_optimizer, centers)
    )

  def add_to_own(trained, starts, total):
    best, centers = starts.choice, starts.shared
    distance = tree.row_distances(trained.params, tree.take(centers, best))
    return None, total.add(trained, best, distance, weighting, centers)

  def step(state, data, cohort, key):
    old = tree.rows_of(state.assignment, cohort)
    (centers, of_server), best, trained = one_round(
      local, server_optimizer, state.centers, state.server, data, cohort, key
    )
    new = jnp.where(trained.took_part(), best, old)
    assignment = tree.with_rows(state.assignment, cohort, new)
    value = trained.sums.objective(state.centers, centers)
    info = round_info(trained, num_clusters, value, state.assignment, assignment, data)
    return HypoClusterState(centers, assignment, of_server), info

  def deployed(state, data):
    best = least_loss(local, state.centers, data, everyone(data))
    return ClientModels(state.centers, best)

  return Algorithm(given, init, step, deployed)
