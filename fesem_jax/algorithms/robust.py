"""Robust(TKM): trimmed k-means once, then robust aggregation."""

from typing import NamedTuple

import jax

from fesem_jax.algorithms.common.centers import check_num_clusters, deployed, round_info
from fesem_jax.algorithms.common.first_clusters import (
  MAX_REPETITIONS,
  Clustering,
  initial_training,
  random_starts,
  train_and_cluster,
)
from fesem_jax.core import traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params
from fesem_jax.server import em
from fesem_jax.server import robust as rules
from fesem_jax.training.cohort import train_cohort
from fesem_jax.utils.ranges import Count, NotNegative, Share


class RobustState(NamedTuple):
  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32, fixed after the start


@recorded
def robust(
  local: LocalTraining,
  *,
  num_clusters: Count = 4,
  trim: Share = 0.1,
  aggregation: str = 'trimmed_mean(0.1)',
  init_epochs: Count = 10,
  init_tolerance: NotNegative = 0.02,
) -> Algorithm:
  """Builds Robust(TKM) (Ghosh et al., "Robust Federated Learning in a Heterogeneous
  Environment", 2019).

    once:  w_i <- SGD from a common start, to near convergence
           r   <- trimmed k-means of the w_i; c_k its centers
    round: w_i <- SGD from c_{r_i} on client i
           c_k <- c_k + trimmed mean of w_i - c_k over the cluster, by coordinate

  The authors' k-means also trims by coordinate, 0.05 at each end; here it leaves out
  whole clients.

  Args:
    num_clusters: K, the number of clusters.
    trim: share of each cluster that k-means leaves out of its mean, the
      clients farthest from the center; 0 is plain k-means.
    aggregation: of each cluster's models, 'trimmed_mean' or 'median' in the paper; see
      `robust.aggregation`.
    init_epochs: local epochs of the training before clustering.
    init_tolerance: these epochs are repeated until the mean training loss of one
      repetition is less than this below that of the one before, at most
      `first_clusters.MAX_REPETITIONS` times; 0 trains once.
  """
  local.check_no_statistics('robust')
  aggregate = rules.aggregation(aggregation) or rules.mean

  def init(key, data):
    check_num_clusters(num_clusters, data)
    initial = train_and_cluster(
      initial_training(local, init_epochs),
      random_starts(local, data, key, 'common'),
      data,
      everyone(data),
      key,
      num_clusters,
      Clustering(trim=trim, tolerance=init_tolerance),
    )
    return RobustState(initial.seeds, initial.assignment)

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    assignment = starts.choice
    assert assignment is not None  # There are centers.
    trained = train_cohort(local, starts, data, cohort, key)
    # The trimmed mean of w_i - c_k plus c_k is the trimmed mean of w_i.
    centers = aggregate(
      trained.params, assignment, trained.took_part(), state.centers, local.mesh
    )
    weights = trained.weights('uniform')
    value = em.objective(trained.params, centers, assignment, weights, local.mesh)
    info = round_info(
      trained, num_clusters, value, state.assignment, state.assignment, data
    )
    return RobustState(centers, state.assignment), info

  # How often the training is repeated is not known: the most numbers are counted.
  sent = traffic.after_clustering(
    traffic.one_model(local), losses=MAX_REPETITIONS if init_tolerance else 0
  )
  return Algorithm(local, init, step, deployed, traffic=sent)
