"""Reclustering from a common start, which corrects wrong assignments of FeSEM.

A client comes back near the center that it starts from, right or wrong; models that
started from one point differ by their data alone. Beyond the paper.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fesem_jax.algorithms.common.centers import round_info
from fesem_jax.algorithms.common.first_clusters import Clustering, train_and_cluster
from fesem_jax.algorithms.common.wrapped import check_wrappable, inner, replaced, wrap
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sums import or_one
from fesem_jax.core.traffic import Sent, Traffic
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server import em
from fesem_jax.training.trained import Trained, weights_by
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count

# New clusters are taken where each client that moves lowers Eq. 6 by more than this
# share of what a client adds to it, on average. Clients in a wrong cluster lower it by
# several times as much; between clusters that run into each other, it is less.
_MARGIN = 0.1

# A few clients are always closer to more centers, above all where some clusters have
# none among them: where the number of clusters in a part of the clients would change,
# their variance within clusters must fall below this share.
_MARGIN_OF_PART = 0.5


class Checks(NamedTuple):
  due: jax.Array  # [] int32 round of the next check, counted from 1
  wait: jax.Array  # [] int32 rounds between the last check and that one
  # [] bool whether clients keep their clusters in the next round: after a change, new
  # clusters may have one center in common, which that round parts.
  hold: jax.Array

  @classmethod
  def first(cls, every: int) -> 'Checks':
    """The first check is in round `every`."""
    first = jnp.int32(variable(every))
    return cls(first, first, jnp.bool_(False))

  def after(self, changed: jax.Array, every: int) -> 'Checks':
    """The next check: `every` rounds after a change; else the wait doubles."""
    wait = jnp.where(changed, variable(every), 2 * self.wait)
    return Checks(self.due + wait, wait, changed)


class Reclustered(NamedTuple):
  centers: Params  # [K, ...]
  stays: jax.Array  # [K] bool whether a center is the same as before
  assignment: jax.Array  # [S] int32 of the cohort
  trained: Trained  # the cohort after training from the common start
  # [] float32 Eq. 6 of that training about the means of its clusters, with the units of
  # all models in one order where they are matched.
  objective: jax.Array
  changed: jax.Array  # [] bool whether the new clusters were taken


class ReclusteringState(NamedTuple):
  method: Any  # of the wrapped method
  checks: Checks


@recorded
def with_reclustering(
  method: Algorithm, every: Count, clustering: Clustering = Clustering()
) -> Algorithm:
  """Clusters all clients again at intervals, from a common start.

  A check takes the place of a round: clients train from the mean of the centers and are
  clustered as at the start. Each check that confirms the clusters doubles the interval.

  Args:
    method: a method with centers; others raise `UserError`. Its clients' models, if
      any, are on the devices.
    every: rounds before the first check.
    clustering: the weighting and the comparison of the method itself.
  """
  check_wrappable(method, 'recluster_every')

  def init(key, data):
    state = method.init(key, data)
    return ReclusteringState(state, Checks.first(every))

  def step(state, data, cohort, key):
    def check(state, data, cohort, key):
      base = inner(state)
      old = tree.rows_of(base.assignment, cohort)
      clusters = recluster(
        method.local, base.centers, base.assignment, old, data, cohort, key, clustering
      )
      trained = clusters.trained
      new = jnp.where(trained.took_part(), clusters.assignment, old)
      assignment = tree.with_rows(base.assignment, cohort, new)
      changes = {'assignment': assignment, 'rounds': base.rounds + 1}
      if 'client_params' in base._fields:
        params = tree.with_rows(base.client_params, cohort, trained.params)
        changes['client_params'] = params
      parts = (clusters.objective,) * 2 if reports_parts else None
      count = len(jax.tree.leaves(base.centers)[0])
      info = round_info(
        trained, count, clusters.objective, base.assignment, assignment, data, parts
      )
      assert method.with_centers is not None
      after = method.with_centers(
        replaced(state.method, **changes), clusters.centers, clusters.stays
      )
      checks = state.checks.after(clusters.changed, every)
      later = state.checks._replace(due=state.checks.due + 1)  # No client took part.
      checks = tree.where(info.trained > 0, checks, later)
      return ReclusteringState(after, checks), info

    def go_on(state, data, cohort, key):
      checks = state.checks
      cohort = dataclasses.replace(cohort, keep_clusters=checks.hold)
      after, info = method.step(state.method, data, cohort, key)
      hold = checks.hold & (info.trained == 0)
      return ReclusteringState(after, checks._replace(hold=hold)), info

    _, like = jax.eval_shape(go_on, state, data, cohort, key)
    reports_parts = like.clusters.objective_parts is not None
    due = inner(state).rounds + 1 == state.checks.due
    return jax.lax.cond(due, check, go_on, state, data, cohort, key)

  return wrap(method, step, init=init, traffic=_with_checks(method.traffic))


def _with_checks(traffic: Traffic | None) -> Traffic | None:
  """The traffic, where a check sends one model to and from each client."""
  if traffic is None:
    return None
  method_round, look = traffic.round_costs, traffic.inputs

  def inputs(state):
    inner = None if look is None else look(state.method)
    return state.checks.due, state.checks.hold, inner

  def round_costs(inputs, drawn):
    due, keep_clusters, inner = inputs
    if drawn.number != due:
      return method_round(inner, drawn._replace(keep_clusters=bool(keep_clusters)))
    return Sent(traffic.model, traffic.model)

  return traffic._replace(round_costs=round_costs, inputs=inputs)


def recluster(
  local: LocalTraining,
  centers: Params,
  assignment: jax.Array,
  old: jax.Array,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  clustering: Clustering,
) -> Reclustered:
  """Clusters the cohort by what it makes of the mean of all centers.

    w_i <- SGD from the mean of the centers, by their numbers of clients
    r   <- k-means of the w_i, if that lowers Eq. 6 of the w_i by more than a tenth of
           the share of clients that move
    c_k <- mean of the centers that the clients of the new cluster k had before

  Clients outside of the cohort stay and count in the means; with such, another number
  of clusters must halve the variance within clusters.
  """
  weighting, comparison = clustering.weighting, clustering.comparison
  count = jax.tree.leaves(centers)[0].shape[0]
  enough = cohort.everyone or cohort.ids.shape[0] > count
  check(enough, 'clients_per_round: recluster_every needs more than num_clusters')
  exists = (data.sizes() > 0).astype(jnp.float32)
  assignment = tree.with_rows(assignment, cohort, old)
  sizes = jnp.zeros(count).at[assignment].add(exists)
  largest = tree.take(centers, sizes.argmax()[None])
  common = comparison.mixed(sizes[None] / sizes.sum(), centers, largest)
  new_clusters = train_and_cluster(
    local,
    ClientModels(common),
    data,
    cohort,
    key,
    count,
    clustering._replace(keep=True),
    train_key=key,
  )
  trained = new_clusters.trained
  weights = trained.weights(weighting)

  def eq_6(clusters: jax.Array) -> jax.Array:
    # Present and new clusters are measured on the same models, as k-means saw them.
    stack = new_clusters.compared
    means = em.m_step(stack, clusters, weights, new_clusters.seeds, local.mesh)
    return em.objective(stack, means, clusters, weights, local.mesh)

  present, least = eq_6(old), eq_6(new_clusters.assignment)

  # [new, old] weight of the clients that would go from one cluster to another.
  flow = jnp.zeros((count, count)).at[new_clusters.assignment, old].add(weights)
  new_of, old_of = optax.assignment.hungarian_algorithm(-flow)
  number = jnp.zeros(count, jnp.int32).at[new_of].set(old_of.astype(jnp.int32))
  named = jnp.where(trained.took_part(), number[new_clusters.assignment], old)
  moves = jnp.where(named != old, weights, 0.0).sum() / or_one(weights.sum())
  gain = present - least
  changed = (moves > 0) & (gain > _MARGIN * moves * present)
  in_cohort = jnp.zeros(exists.shape, bool).at[cohort.ids].set(True, mode='drop')
  counts = trained.took_part()
  before = counts.sum() - _number_used(old, counts, count)
  after = counts.sum() - _number_used(new_clusters.assignment, counts, count)
  halves = least * before < _MARGIN_OF_PART * present * after
  changed &= (in_cohort | (exists == 0)).all() | (before == after) | halves
  new = jnp.where(changed, named, old)
  flow = jnp.zeros_like(flow).at[new, old].add(weights)
  client_weights = exists * weights_by(weighting, data.sizes(), data.weights)
  weights_of_others = jnp.where(in_cohort, 0.0, client_weights.astype(jnp.float32))
  flow = flow.at[assignment, assignment].add(weights_of_others)
  flow = jnp.where(flow.sum(axis=1, keepdims=True) > 0, flow, jnp.eye(count))
  shares = flow / flow.sum(axis=1, keepdims=True)
  centers = comparison.mixed(shares, centers, centers)
  value = jnp.where(changed, least, present)
  if comparison.partial:  # Eq. 6 is about all parameters.
    means = em.m_step(trained.params, new, weights, centers, local.mesh)
    value = em.objective(trained.params, means, new, weights, local.mesh)
  unchanged = jnp.diagonal(shares) == 1
  return Reclustered(centers, unchanged, new, trained, value, changed)


def _number_used(cluster: jax.Array, counts: jax.Array, num_clusters: int) -> jax.Array:
  """[] int32: clusters [S] that hold a client that counts [S]."""
  sizes = jnp.zeros(num_clusters, jnp.int32).at[cluster].add(counts.astype(jnp.int32))
  return (sizes > 0).sum()
