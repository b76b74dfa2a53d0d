"""PACFL: clusters clients once, by subspaces of their examples."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.centers import check_num_clusters, deployed
from fesem_jax.algorithms.common.cluster_averaging import step_of_fixed_clusters
from fesem_jax.core import sharding, traffic, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params
from fesem_jax.server import agglomerative, subspaces
from fesem_jax.server.vector_clusters import numbered_by_clients
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, NotNegative


class PacflState(NamedTuple):
  centers: Params  # [K, ...] c_k
  assignment: jax.Array  # [M] int32 r_i, fixed after the start
  numbers_sent: jax.Array  # [M] int32 how many numbers U_i has


@recorded
def pacfl(
  local: LocalTraining,
  *,
  num_clusters: Count = 4,
  angle_threshold: NotNegative = 0.0,
  num_vectors: Count = 3,
  proximity: subspaces.Proximity = 'smallest_angle',
) -> Algorithm:
  """Builds PACFL (Vahidian et al., "Efficient Distribution Similarity Identification in
  Clustered Federated Learning via Principal Angles Between Client Data Subspaces",
  AAAI 2023).

    once:  U_i  <- for each label, the first p left singular vectors of the matrix whose
                   columns are client i's examples of it
           A_ij <- angle between U_i and U_j in degrees
           r    <- agglomerative clustering of A, by average linkage
    round: w_i  <- SGD from c_{r_i} on client i
           c_k  <- sum_i alpha_i w_i over the clients with r_i = k

  with alpha_i = n_i / sum n_j over these clients.

  Args:
    num_clusters: K, the number of clusters, or the most with `angle_threshold`.
    angle_threshold: clusters are merged while the nearest two are no farther apart, in
      degrees; 0 merges them until K are left.
    num_vectors: p, singular vectors of a client's examples of each label.
    proximity: what A_ij is: the 'smallest_angle' between the two subspaces, the
      'sum_of_angles' between corresponding vectors, or the smallest among 'entries', as
      in the authors' code; see `subspaces.proximities`.

  Raises:
    UserError: if the task is not classification or, when it starts, if all
      'smallest_angle's could only be 0.
  """
  task = local.model.task.name
  check(task == CLASSIFICATION.name, f'task: pacfl needs a classification, not {task}')

  def clustered(data, vectors):
    exists = (vectors != 0).any(axis=(1, 2, 3)) & (data.sizes() > 0)
    angles = subspaces.proximities(vectors, vectors, proximity)
    most = variable(angle_threshold) if angle_threshold else None
    ids = jnp.asarray(data.client_ids)
    order = jnp.argsort(ids)  # What comes first of equal angles decides.
    first = agglomerative.agglomerate(
      angles[order][:, order], exists[order], num_clusters, most
    )
    assignment = numbered_by_clients(first[jnp.argsort(order)], exists, ids, len(ids))
    return jnp.where(exists, assignment, 0).astype(jnp.int32)

  def init(key, data):
    check_num_clusters(num_clusters, data)
    if proximity == 'smallest_angle' and num_clusters > 1:
      _check_spans(data, num_vectors)
    vectors = subspaces.principal_vectors(local, data, everyone(data), num_vectors)
    vectors = sharding.on_all_devices(vectors, local.mesh)
    centers = tree.repeat(local.model.init(key), num_clusters)
    numbers = (vectors != 0).any(axis=3).sum(axis=(1, 2)) * vectors.shape[3]
    return PacflState(centers, clustered(data, vectors), numbers)

  sent = traffic.one_model(local)._replace(
    inputs=lambda state: state.numbers_sent,
    start_up=lambda numbers: traffic.NUMBER * int(numbers.sum()),
    extras=None,
  )
  step = step_of_fixed_clusters(local)
  return Algorithm(local, init, step, deployed, traffic=sent)


def _check_spans(data: FederatedData, num_vectors: int) -> None:
  """Raises `UserError` if the spans of any two clients must intersect."""
  most = min(num_vectors * data.num_classes, data.max_examples)
  features = math.prod(data.example_shape)
  disjoint = 2 * most <= features
  check(disjoint, 'proximity: all spans meet; give entries, or lower num_vectors')
