"""FedCluster: clustered federated learning by recursive bipartition.

Sattler et al., "Clustered Federated Learning: Model-Agnostic Distributed
Multitask Optimization under Privacy Constraints", IEEE TNNLS 2020.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from fesem_jax.algorithms.common.centers import round_info
from fesem_jax.clustering import em
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.gram_matrices import inner_products
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import WEIGHTINGS, train_cohort
from fesem_jax.utils import processes
from fesem_jax.utils.errors import UserError, check_at_least, check_choice

# How two groups of clients are told apart, and SciPy's name for it. 'minimax'
# is the paper's: the bipartition with the least largest similarity across it.
_LINKAGES = {'complete': 'complete', 'average': 'average', 'minimax': 'single'}


# Beyond any use: a center is kept for each from the start.
MAX_CLUSTERS = 10_000


class FedClusterState(NamedTuple):
  """State of FedCluster."""

  centers: Params  # [max_clusters, ...]; rows of clusters not yet made are unused
  assignment: jax.Array  # [M] int32
  num_clusters: jax.Array  # [] int32
  rounds: jax.Array  # [] int32 rounds done


def fed_cluster(
  local: LocalTraining,
  *,
  max_clusters: int = 16,
  eps1: float = 0.4,
  eps1_scale: str = 'relative',
  eps2: float = 0.8,
  gamma: float = 0.13,
  min_size: int = 20,
  min_rounds: int = 5,
  check_every: int = 5,
  linkage: str = 'complete',
  weighting: str = 'by_examples',
) -> Algorithm:
  """Builds FedCluster.

    w_i <- SGD from c_{r_i} on client i;  u_i = w_i - c_{r_i}
    c_k <- mean of w_i over the clients with r_i = k
    on check rounds, for each cluster k of more than `min_size` clients: if
        |mean_i u_i| < eps1 max_i |u_i|   and   max_i |u_i| > eps2,
      part it in two by the cosine similarities s_ij of the u_i, and keep the
      parts if sqrt((1 - max s_ij across them) / 2) > gamma; both go on from c_k

  Both means weigh clients alike or by examples, see `weighting`. The step compares
  the updates; the split is decided on the host, `between` rounds. All clients take
  part in every round.

  eps1 is relative to the largest update, so that one value serves models of
  any size; Sattler et al. give absolute values for theirs. gamma and min_size
  are those of Long et al.'s experiments, who also use average linkage and
  train 30 rounds before each bipartition, without eps1 and eps2.

  Args:
    local: how clients train.
    max_clusters: no split makes more clusters than this.
    eps1: a cluster whose mean update is this small has converged.
    eps1_scale: 'relative' to the largest update, or 'absolute' (L2 norm).
    eps2: clients whose updates are this large (L2 norm) have not.
    gamma: least separation of the two parts.
    min_size: clusters of this many clients or fewer are not split.
    min_rounds: no check in these first rounds.
    check_every: checks are made in every round that this divides.
    linkage: 'complete', 'average', or 'minimax', the paper's optimum, which
      tends to cut off single clients.
    weighting: of the clients in both means, 'by_examples' or 'uniform'.

  Raises:
    UserError: on an option outside its range, or partial participation.
  """
  check_choice('linkage', linkage, tuple(_LINKAGES))
  check_choice('eps1_scale', eps1_scale, ('relative', 'absolute'))
  check_choice('weighting', weighting, WEIGHTINGS)
  check_at_least(1, max_clusters=max_clusters, check_every=check_every)
  if max_clusters > MAX_CLUSTERS:
    raise UserError(f'`max_clusters={max_clusters}` must be at most {MAX_CLUSTERS}.')

  def init(key, data):
    start = local.model.init(key)
    return FedClusterState(
      centers=tree.repeat(start, max_clusters),
      assignment=jnp.zeros(data.num_clients, jnp.int32),
      num_clusters=jnp.int32(1),
      rounds=jnp.int32(0),
    )

  def is_check(rounds, min_rounds=min_rounds, check_every=check_every):
    return (rounds > min_rounds) & (rounds % check_every == 0)

  def add(trained, starts, total):
    own = starts.params(trained.ids.shape[0])
    distance = tree.row_distances(trained.params, own)
    updates = jax.tree.map(jnp.subtract, trained.params, own)
    return updates, total.add(
      trained, starts.choice, distance, weighting, starts.shared
    )

  def step(state, data, cohort, key):
    if not cohort.everyone:
      raise UserError(
        '`clients_per_round` must be 0 for fed_cluster: it compares the updates of all '
        'clients.'
      )
    assignment, rounds = state.assignment, state.rounds + 1
    trained = train_cohort(
      local,
      deployed(state, data).of(cohort),
      data,
      cohort,
      key,
      keep=False,
      fold=add,
      sums=em.Sums.zeros(state.centers),
    )
    centers = sums.mean_of(trained.sums.clients, state.centers)
    value = trained.sums.objective(state.centers, centers)
    info = round_info(trained, max_clusters, value, assignment, assignment, data)
    count = data.num_clients
    products = jax.lax.cond(
      is_check(rounds, variable(min_rounds), variable(check_every)),
      lambda: inner_products(trained.folded, local.mesh),
      lambda: jnp.zeros((count, count)),
    )
    state = FedClusterState(centers, assignment, state.num_clusters, rounds)
    return state, info._replace(updates=(products, trained.weights(weighting)))

  def between(state, info):
    updates, info = info.updates, info._replace(updates=None)
    if not is_check(int(state.rounds)):
      return state, info
    products, weights, before = processes.on_host((*updates, state.assignment))
    count_before = int(state.num_clusters)
    after, count = split_clusters(
      products,
      weights,
      before,
      count_before,
      max_clusters=max_clusters,
      eps1=eps1,
      eps1_scale=eps1_scale,
      eps2=eps2,
      gamma=gamma,
      min_size=min_size,
      linkage=linkage,
    )
    if count == max_clusters > count_before:
      logging.warning(
        'FedCluster has made max_clusters=%d clusters; it splits no further.', count
      )
    parent = np.arange(max_clusters, dtype=np.int32)
    parent[after] = before
    moved = after != before
    change = [np.bincount(r[moved], minlength=max_clusters) for r in (after, before)]
    clusters = info.clusters._replace(
      assignment=after,
      sizes=info.clusters.sizes + change[0] - change[1],
      moved=moved.sum(),
    )
    state = state._replace(
      centers=tree.take(state.centers, jnp.asarray(parent)),
      assignment=after,
      num_clusters=count,
    )
    return state, info._replace(clusters=clusters)

  def deployed(state, data):
    del data
    return ClientModels(state.centers, state.assignment)

  return Algorithm(local, init, step, deployed, between)


def split_clusters(
  products: np.ndarray,
  weights: np.ndarray,
  assignment: np.ndarray,
  num_clusters: int,
  *,
  max_clusters: int,
  eps1: float,
  eps1_scale: str,
  eps2: float,
  gamma: float,
  min_size: int,
  linkage: str,
) -> tuple[np.ndarray, np.int32]:
  """Splits every cluster that has converged while its clients have not.

  Args:
    products: [M, M] inner products of the clients' updates. A client whose
      update is 0 (it dropped out, failed or does not exist) stays where it is.
    weights: [M] of the clients in the mean update.
    assignment: [M] int32.
    num_clusters: clusters so far.
    max_clusters: see `fed_cluster`, as the rest.
    eps1: of the mean update.
    eps1_scale: 'relative' or 'absolute'.
    eps2: of the largest update, absolute.
    gamma: least separation.
    min_size: of a cluster that is split.
    linkage: a key of `_LINKAGES`.

  Returns:
    assignment [M] int32 and the number of clusters, int32.
  """
  products, weights = np.asarray(products, np.float64), np.asarray(weights, np.float64)
  assignment = np.array(assignment, np.int32)
  moved = products.diagonal() > 0
  for k in range(num_clusters):
    members = np.flatnonzero((assignment == k) & moved)  # Ids of clients.
    if num_clusters == max_clusters or len(members) <= max(min_size, 1):
      continue
    block = products[np.ix_(members, members)]
    if not np.isfinite(block).all():
      continue  # Updates beyond what float32 can multiply.
    norms = np.sqrt(block.diagonal())
    shares = weights[members] / weights[members].sum()
    mean_norm = np.sqrt(max(shares @ block @ shares, 0))
    small = eps1 * norms.max() if eps1_scale == 'relative' else eps1
    if mean_norm >= small or norms.max() <= eps2:
      continue
    similarity = np.clip(block / np.outer(norms, norms), -1, 1)
    second = bipartition(similarity, linkage)
    if not second.any():  # Ties everywhere: there is no first cut.
      continue
    across = similarity[np.ix_(~second, second)].max()
    if np.sqrt((1 - across) / 2) > gamma:
      # `second` marks positions within the parent; clients are stored by id.
      assignment[members[second]] = num_clusters
      num_clusters += 1
  return assignment, np.int32(num_clusters)


def bipartition(similarity: np.ndarray, linkage: str) -> np.ndarray:
  """[n] bool: which clients are not in the first one's part.

  Args:
    similarity: [n, n] cosine similarities, n >= 2.
    linkage: a key of `_LINKAGES`.
  """
  from scipy.cluster import hierarchy  # Slow to import.
  from scipy.spatial.distance import squareform

  distance = 1 - (similarity + similarity.T) / 2
  np.fill_diagonal(distance, 0)
  merges = hierarchy.linkage(squareform(distance, checks=False), _LINKAGES[linkage])
  part = hierarchy.fcluster(merges, 2, 'maxclust')
  return part != part[0]
