"""Robust(TKM): trimmed k-means once, then robust optimization in each cluster.

Ghosh et al., "Robust Federated Learning in a Heterogeneous Environment", 2019.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fesem_jax import em, sharding, sums
from fesem_jax.algorithms.centers import (
  before_rounds,
  check_num_clusters,
  random_start,
  round_info,
  train_and_cluster,
)
from fesem_jax.base import Params
from fesem_jax.errors import check_at_least, check_choice, check_share
from fesem_jax.local import train_cohort
from fesem_jax.method import Algorithm, ClientModels
from fesem_jax.sampling import everyone
from fesem_jax.training import LocalTraining

# The trimmed mean sorts so many numbers of each device's clients at a time.
_NUMBERS_AT_ONCE = 2**20


class RobustState(NamedTuple):
  """State of Robust."""

  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32, fixed after the start


def robust(
  local: LocalTraining,
  *,
  num_clusters: int = 4,
  trim: float = 0.1,
  aggregation: str = 'trimmed_mean',
  beta: float = 0.1,
  init_epochs: int = 10,
  init_tolerance: float = 0.02,
  init_restarts: int = 20,
  init_seeding: str = 'random',
) -> Algorithm:
  """Builds Robust(TKM).

    once:  w_i <- SGD from a common start, to near convergence
           r   <- trimmed k-means of the w_i; c_k its centers
    round: w_i <- SGD from c_{r_i} on client i
           c_k <- c_k + trimmed mean of w_i - c_k over the cluster, by coordinate

  Clusters are fixed after the start: a client that is not drawn deploys its
  cluster's center as it is now. The authors' k-means also trims by coordinate,
  0.05 at each end; here it leaves out whole clients.

  Args:
    local: how clients train.
    num_clusters: K.
    trim: share of each cluster that k-means leaves out of its mean, the
      clients farthest from the center; 0 is plain k-means.
    aggregation: 'trimmed_mean' or 'median' of each coordinate.
    beta: share that the trimmed mean drops at each end; 0 is the mean.
    init_epochs: local epochs of the training before clustering.
    init_tolerance: these epochs are repeated until the mean training loss of one
      repetition is less than this below that of the one before, at most
      `centers.MAX_REPETITIONS` times; 0 trains once.
    init_restarts: restarts of the clustering.
    init_seeding: 'random' or 'plusplus'.

  Raises:
    UserError: on an option outside its range.
  """
  check_choice('aggregation', aggregation, ('trimmed_mean', 'median'))
  check_choice('init_seeding', init_seeding, ('random', 'plusplus'))
  check_at_least(
    1, num_clusters=num_clusters, init_epochs=init_epochs, init_restarts=init_restarts
  )
  check_at_least(0, init_tolerance=init_tolerance)
  check_share(trim=trim)
  check_share(0.5, beta=beta)
  dropped = 0.5 if aggregation == 'median' else beta

  def init(key, data):
    check_num_clusters(num_clusters, data)
    initial = train_and_cluster(
      before_rounds(local, init_epochs),
      random_start(local, data, key, 'common'),
      data,
      everyone(data),
      key,
      num_clusters,
      restarts=init_restarts,
      seeding=init_seeding,
      trim=trim,
      tolerance=init_tolerance,
    )
    return RobustState(initial.seeds, initial.assignment)

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    own = starts.choice
    trained = train_cohort(local, starts, data, cohort, key)
    # The trimmed mean of w_i - c_k plus c_k is the trimmed mean of w_i.
    centers = trimmed_mean(
      trained.params, own, trained.took_part(), dropped, state.centers, local.mesh
    )
    weights = trained.weights('uniform')
    value = em.objective(trained.params, centers, own, weights, local.mesh)
    info = round_info(
      trained, num_clusters, value, state.assignment, state.assignment, data
    )
    return RobustState(centers, state.assignment), info

  def deployed(state, data):
    del data
    return ClientModels(state.centers, state.assignment)

  return Algorithm(local, init, step, deployed)


def trimmed_mean(
  stack: Params,
  cluster: jax.Array,
  counts: jax.Array,
  beta: float,
  origins: Params,
  mesh: Mesh | None = None,
) -> Params:
  """Coordinate-wise trimmed mean of the rows of each cluster.

  One sort by (cluster, value) puts every cluster's rows together, in the same
  places for all coordinates; which rows are dropped is then known beforehand.
  Coordinates are sorted in blocks, so that no second stack exists, and each device
  sorts its share of a block for all clients.

  Args:
    stack: [S, ...] rows.
    cluster: [S] int32 in 0..K-1.
    counts: [S] bool, False for rows to leave out.
    beta: of n rows, floor(beta * n) are dropped at each end, but never all;
      0.5 gives the median.
    origins: [K, ...] a point near each cluster; one without rows stays there.
    mesh: devices that the rows are split over; None if they are whole here.

  Returns:
    [K, ...].
  """
  num_clusters = jax.tree.leaves(origins)[0].shape[0]
  cluster = jnp.where(counts, cluster, num_clusters)
  if beta == 0:
    weights = counts.astype(jnp.float32)
    return sums.weighted_mean(stack, cluster, weights, origins, mesh)
  sizes = jnp.bincount(cluster, length=num_clusters + 1)
  starts = jnp.cumsum(sizes) - sizes
  cut = jnp.minimum(jnp.floor(beta * sizes + 1e-4), (sizes - 1) // 2)
  sorted_cluster = jnp.sort(cluster)
  rank = jnp.arange(cluster.size) - starts[sorted_cluster]
  inside = (rank >= cut[sorted_cluster]) & (rank < (sizes - cut)[sorted_cluster])
  kept = (inside & (sorted_cluster < num_clusters)).astype(jnp.float32)

  devices = 1 if mesh is None else mesh.size

  def on_device(stack, origins, cluster, sorted_cluster, kept):
    def mean_of_columns(columns: jax.Array, origin: jax.Array) -> jax.Array:
      keys = jnp.broadcast_to(cluster[:, None], columns.shape)
      columns = jax.lax.sort((keys, columns), dimension=0, num_keys=2)[1]
      return sums.weighted_mean(columns, sorted_cluster, kept, origin)

    def move(columns: jax.Array, about: jax.Array) -> jax.Array:
      if devices == 1:
        return mean_of_columns(columns, about) - about
      # [S / D, D * w] of this device's clients -> [S, w] of this device's columns.
      columns = jax.lax.all_to_all(columns, sharding.CLIENTS, 1, 0, tiled=True)
      width = columns.shape[1]
      at = jax.lax.axis_index(sharding.CLIENTS) * width
      mine = jax.lax.dynamic_slice_in_dim(about, at, width, axis=1)
      moved = mean_of_columns(columns, mine) - mine
      whole = jnp.zeros_like(about)
      return jax.lax.dynamic_update_slice_in_dim(whole, moved, at, axis=1)

    def by_blocks(x: jax.Array, origin: jax.Array) -> jax.Array:
      flat, about = x.reshape(x.shape[0], -1), origin.reshape(num_clusters, -1)
      width = max(1, _NUMBERS_AT_ONCE // max(1, x.shape[0])) * devices
      whole, rest = divmod(flat.shape[1], width)

      def add_block(start: jax.Array | int, width: int, moves: jax.Array) -> jax.Array:
        def part(a):
          return jnp.pad(
            jax.lax.dynamic_slice_in_dim(a, start, width, axis=1),
            ((0, 0), (0, -width % devices)),
          )

        moved = move(part(flat), part(about))[:, :width]
        return jax.lax.dynamic_update_slice_in_dim(moves, moved, start, axis=1)

      moves = jnp.zeros_like(about)
      if whole:

        def block(i, moves):
          return add_block(i * width, width, moves)

        moves = jax.lax.fori_loop(0, whole, block, moves)
      if rest:
        moves = add_block(whole * width, rest, moves)
      return moves.reshape(origin.shape)

    return None, jax.tree.map(by_blocks, stack, origins)

  _, moves = sharding.per_device(on_device, mesh, 1)(
    stack, origins, cluster, sorted_cluster, kept
  )
  return jax.tree.map(jnp.add, origins, moves)
