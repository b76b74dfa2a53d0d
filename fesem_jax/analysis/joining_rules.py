"""Rules by which a client that was not in training joins a cluster (Section 8).

Its data stay with it: it trains for a moment, or measures losses, and joins one of the
centers of a finished run.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone
from fesem_jax.core.types import Params
from fesem_jax.evaluation.agreement import contingency
from fesem_jax.server import em
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction

RULES = ('weights', 'direction', 'loss')


class Joined(NamedTuple):
  """The center that each new client joins, by each rule: ties go to the smallest."""

  weights: jax.Array  # [M] int32 nearest to the model that the client trained (Eq. 8)
  # [M] int32 that of the largest cosine between the client's update and the way from
  # the mean of the centers to the center.
  direction: jax.Array
  # [M] int32 of least loss on the client's training examples, IFCA's rule.
  loss: jax.Array
  # [M] bool, False for a client whose training was not finite: its model is the mean of
  # the centers, and `weights` and `direction` go by that.
  finite: jax.Array


def join(
  local: LocalTraining, centers: Params, data: FederatedData, key: jax.Array
) -> Joined:
  """Lets clients join by each rule.

  For `weights` and `direction` every client trains, without a penalty, from the mean of
  the centers. Each center counts alike in it: weighted by their clients, the mean lies
  beside the center of the largest cluster, and whoever trains briefly would join that.

  Args:
    local: how clients train before they join; all of them alike (no `work`), at the
      full learning rate.
    centers: [K, ...] those that clients may join.
    data: training split of the M new clients, on the devices; M is a multiple of the
      device count.
    key: decides the order of their examples.
  """
  local = local._replace(dropout_rate=0.0, work=None)
  cohort = everyone(data)
  count = jax.tree.leaves(centers)[0].shape[0]
  mean = jax.tree.map(lambda c: c.mean(axis=0, keepdims=True), centers)
  # What a chunk needs of the centers has to come through the models to start from.
  models = jax.tree.map(lambda c, m: jnp.concatenate([c, m]), centers, mean)
  starts = ClientModels(models, jnp.full(data.num_clients, count, jnp.int32))

  def compare(trained, start, sums):
    centers = jax.tree.map(lambda x: x[:count], start.shared)
    mean = jax.tree.map(lambda x: x[count:], start.shared)
    nearest, _ = em.e_step(trained.params, centers)
    return (nearest, most_alike(trained.params, centers, mean)), sums

  reduction = Reduction(compare, keep=False)
  trained = train_cohort(local, starts, data, cohort, key, reduction)
  nearest, alike = trained.folded
  losses = cohort_losses(local, centers, data, cohort)
  return Joined(nearest, alike, losses.argmin(axis=1).astype(jnp.int32), trained.finite)


def most_alike(stack: Params, centers: Params, start: Params) -> jax.Array:
  """The center in whose direction each model has moved.

  Args:
    stack: [S, ...] models that were trained from `start`.
    centers: [K, ...].
    start: [1, ...].

  Returns:
    [S] int32, the center of the largest cosine between w - start and c - start. The
    cosine of a model or center that is the start itself is 0.
  """

  def product(w: jax.Array, c: jax.Array, s: jax.Array) -> jax.Array:
    moved = (w - s).reshape(w.shape[0], -1)
    ways = (c - s).reshape(c.shape[0], -1)
    return jnp.matmul(moved, ways.T, precision=jax.lax.Precision.HIGHEST)

  products = sum(jax.tree.leaves(jax.tree.map(product, stack, centers, start)))
  # The length of the client's own move is common to all of its cosines.
  lengths = jnp.sqrt(tree.row_distances(centers, start))
  cosines = products / jnp.where(lengths > 0, lengths, 1.0)[None]
  return cosines.argmax(axis=1).astype(jnp.int32)


def alone(
  local: LocalTraining, data: FederatedData, key: jax.Array
) -> tuple[ClientModels, jax.Array]:
  """Trains every client by itself, from one random model, at the full learning rate.

  `data` is the training split of M clients, as for `join`; `key` decides the random
  model and the order of examples. Nothing is sent, so `local.sends` changes no model,
  and the steps are those of many rounds, of each of which `local.local_lr_schedule` is.
  Returns their models, and [M] bool, False for a
  client whose training was not finite: it keeps the random model.
  """
  local = local._replace(
    dropout_rate=0.0, work=None, sends=None, local_lr_schedule=None
  )
  cohort = everyone(data)
  of_model, of_training = jax.random.split(key)
  random = tree.expand(local.model.init(of_model))
  trained = train_cohort(local, ClientModels(random), data, cohort, of_training)
  return ClientModels(own=trained.params), trained.finite


def groups_of_clusters(truth: np.ndarray, assignment: np.ndarray) -> np.ndarray:
  """[K] true group of most of each cluster's clients, of equally many the first.

  `truth` [M] is the true group of each client that took part, int or names,
  `assignment` [M] int its cluster; each of the K clusters has clients.
  """
  return np.unique(truth)[contingency(assignment, truth).argmax(axis=1)]
