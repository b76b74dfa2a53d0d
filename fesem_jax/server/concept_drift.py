"""FedDrift's decisions: clients that drift, free models, and models to merge."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.server.agglomerative import Merging, merge_while

_HIGHEST = jax.lax.Precision.HIGHEST


class Clients(NamedTuple):
  """Losses and models of M clients at the beginning of a time step."""

  # [M, K] float32 of all models; infinite for those that are not in use.
  losses: jax.Array
  assignment: jax.Array  # [M] int32 model of each client in the time step before
  before: jax.Array  # [M] float32 least loss at the beginning of the time step before
  sent: jax.Array  # [M] bool, clients whose losses count; others keep their models
  weights: jax.Array  # [M] float32 in means; 0 for clients without examples
  ids: jax.Array  # [M] int32


class Decision(NamedTuple):
  """The models that clients take in a time step, and those that merge."""

  best: jax.Array  # [M] int32 model of least loss, before models merge
  loss: jax.Array  # [M] float32 that loss
  # [M] int32 model that a client starts as a copy of its best one; K for none.
  new: jax.Array
  weights: jax.Array  # [K] float32 of the models in their means
  into: jax.Array  # [K] int32 model that each is merged into
  assignment: jax.Array  # [M] int32 model that each client trains
  last_used: jax.Array  # [K] int32 last time step of each model; -1: not in use


def decide(
  clients: Clients, last_used: jax.Array, step: jax.Array, delta: float | jax.Array
) -> Decision:
  """Detects drift, gives new models, and merges those that are alike.

  `last_used` is [K] int32 as in `Decision`, and `step` [] int32 counts time steps.
  """
  num_models, exists = last_used.shape[0], clients.weights > 0

  def clients_of(models: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.one_hot(models, num_models) * mask[:, None]

  best, loss, drifted, stays = choose(clients, delta)
  in_use = clients_of(best, exists).any(axis=0)
  new = free_models(drifted, last_used, in_use, clients.ids)
  begins = new < num_models
  new_members = clients_of(new, begins).any(axis=0)

  chosen = clients_of(best, clients.sent & ~drifted)
  members = jnp.maximum(chosen, clients_of(clients.assignment, stays))
  weights = members * clients.weights[:, None]
  is_finite = (jnp.isfinite(clients.losses) | ~clients.sent[:, None]).all(axis=0)
  usable = (last_used >= 0) & ~new_members & is_finite & (weights > 0).any(axis=0)
  model_distances = distances(clients.losses, weights, usable)
  merging = Merging.of(model_distances)
  merged = merge_while(merging, lambda nearest, merges: nearest < delta, 'complete')
  into = merged.first

  used = clients_of(into[best], exists & ~begins).any(axis=0) | new_members
  used_before = jnp.where(into == jnp.arange(num_models), last_used, -1)
  return Decision(
    best=best,
    loss=loss,
    new=new,
    weights=weights.sum(axis=0),
    into=into,
    assignment=jnp.where(begins, new, into[best]),
    last_used=jnp.where(used, step, used_before).astype(jnp.int32),
  )


def choose(clients: Clients, delta: float | jax.Array) -> tuple[jax.Array, ...]:
  """[M] model of least loss, that loss, who has drifted, and whose model has not risen.

  Clients that sent no losses have the model and the loss of the step before.
  """
  losses, assignment, before, sent, *_ = clients
  best = jnp.where(sent, losses.argmin(axis=1), assignment).astype(jnp.int32)
  least = jnp.where(sent, losses.min(axis=1), before)
  old = jnp.take_along_axis(losses, assignment[:, None], axis=1)[:, 0]
  bound = before + delta
  return best, least, sent & (least > bound), sent & (old <= bound)


def free_models(
  starts_new: jax.Array, last_used: jax.Array, in_use: jax.Array, client_ids: jax.Array
) -> jax.Array:
  """[M] int32 new model of each client that starts one, or K: unused, then oldest."""
  num_models, most = last_used.shape[0], jnp.iinfo(jnp.int32).max
  free = jnp.argsort(jnp.where(in_use, most, last_used), stable=True)
  rank = jnp.argsort(jnp.argsort(jnp.where(starts_new, client_ids, most), stable=True))
  has_place = starts_new & (rank < (~in_use).sum())
  return jnp.where(has_place, free[rank], num_models).astype(jnp.int32)


def distances(losses: jax.Array, weights: jax.Array, usable: jax.Array) -> jax.Array:
  """[K, K] float32 D_jk of `fed_drift`: how much worse models are on others' clusters.

  `losses` are [M, K], and `weights` [M, K] the examples of each client in each cluster.
  Infinite on the diagonal, and for models that are not `usable` [K] bool.
  """
  finite = jnp.where(usable[None] & jnp.isfinite(losses), losses, 0.0)
  total = jnp.matmul(finite.T, weights, precision=_HIGHEST)
  weight = weights.sum(axis=0)
  mean = total / jnp.where(weight > 0, weight, 1.0)[None]
  rise = mean - jnp.diagonal(mean)[:, None]
  pair_distances = jnp.maximum(jnp.maximum(rise, rise.T), 0.0)
  pair = usable[:, None] & usable[None] & ~jnp.eye(usable.shape[0], dtype=bool)
  return jnp.where(pair, pair_distances, jnp.inf)
