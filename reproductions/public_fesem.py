"""FeSEM in the public code of CFLA, DisCo-CFL and FlexCFL."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.algorithms.common.centers import deployed
from fesem_jax.algorithms.fesem import FesemState, fesem
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels, RoundInfo
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training import one_client
from fesem_jax.training.cohort import for_each_client, train_cohort
from fesem_jax.utils import processes


@recorded
def equal_centers(local: LocalTraining, *, num_clusters: int = 10) -> Algorithm:
  """CFLA's FeSEM(K): all centers start equal, clusters are random; no penalty."""
  method = fesem(local, num_clusters=num_clusters, prox_lambda=0.0)

  def init(key, data):
    model = local.model.init(key)
    clusters = jax.random.randint(key, (data.num_clients,), 0, num_clusters)
    models = tree.repeat(model, data.num_clients)
    return FesemState(tree.repeat(model, num_clusters), clusters, models, jnp.int32(0))

  return method._replace(init=init)


def _alone(local: LocalTraining, data: Any, client: Any, cohort: Cohort) -> Cohort:
  """The cohort of one client on the first device; others get an empty slot."""
  ids = jnp.full(local.mesh.size, -1).at[0].set(client)
  return Cohort(data.positions(ids), everyone=False, round=cohort.round)


class OneClientState(NamedTuple):
  """State of `one_client_a_round`."""

  centers: Params  # [1, ...]
  assignment: jax.Array  # [M] int32, all 0


@recorded
def one_client_a_round(local: LocalTraining) -> Algorithm:
  """FlexCFL's FeSEM(K): all clients share a center, of which one moves it in a round.

  Its centers are K random models, and clients begin with the same model, so that all
  join the center nearest to it. No trained model is nearer to another random model, so
  that no client moves. `group.py` weighs updates by `[1.0*len(nks)]`, a list of one
  number: a center gets the model of its first client, in an order drawn each round.
  """

  def init(key, data):
    clusters = jnp.zeros(data.num_clients, jnp.int32)
    return OneClientState(tree.repeat(local.model.init(key), 1), clusters)

  def step(state, data, cohort, key):
    client = jax.random.randint(key, (1,), 0, len(data.info.names))
    alone = _alone(local, data, client[0], cohort)
    trained = train_cohort(local, ClientModels(state.centers), data, alone, key)
    center = tree.take(trained.params, jnp.zeros(1, jnp.int32))
    return state._replace(centers=center), trained.info()

  return Algorithm(local, init, step, deployed)


class OneOptimizerState(NamedTuple):
  """State of `one_optimizer`."""

  centers: Params  # [1, ...]
  assignment: jax.Array  # [M] int32, all 0
  moments: optax.OptState  # of the optimizer


@recorded
def one_optimizer(local: LocalTraining) -> Algorithm:
  """`one_client_a_round`, with the one optimizer of FlexCFL's one Keras model.

  All clients train in each round, in the order drawn, from the center. The moments and
  the number of steps pass from client to client and from round to round; of the models,
  the first client's is the new center.
  """

  def init(key, data):
    model, clusters = local.model.init(key), jnp.zeros(data.num_clients, jnp.int32)
    moments = local.optimizer.init(model)
    return OneOptimizerState(tree.repeat(model, 1), clusters, moments)

  def update(client):
    def step(t, carry, batch):
      loss, grads = jax.value_and_grad(batch.loss)(carry[0])
      new = client.descend(t, grads, carry[1], carry[0])
      return one_client.where(batch.active, new, carry), loss

    carry = client.start, client.state
    (params, moments), loss = one_client.over_batches(client, carry, step)
    finite = one_client.all_finite(params)
    model = one_client.LocalModel(params, loss, finite, client.steps)
    return model, client.send(model, client.received), moments

  def step(state, data, cohort, key):
    starts = ClientModels(state.centers)

    def train(moments, client):
      alone = _alone(local, data, client, cohort)
      slots = tree.repeat(moments, local.mesh.size)
      trained = for_each_client(update, local, starts, data, alone, key, state=slots)
      moments, model = (tree.unstack(x, 0) for x in (trained.state, trained.params))
      return moments, (model, trained.info())

    order = jax.random.permutation(key, len(data.info.names))
    moments, results = jax.lax.scan(train, state.moments, order)
    model, info = tree.unstack(results, 0)
    return state._replace(centers=tree.repeat(model, 1), moments=moments), info

  return Algorithm(local, init, step, deployed)


class ChainState(NamedTuple):
  """State of `chained`."""

  centers: Params  # [K, ...]
  assignment: jax.Array  # [M] int32
  rounds: jax.Array  # [] int32 rounds done
  seed: jax.Array  # [] int32 of k-means++


@recorded
def chained(
  local: LocalTraining, *, num_clusters: int = 4, warmup: int = 10
) -> Algorithm:
  """DisCo-CFL's FeSEM(K), in which clients of a cluster train one after another.

    w_i     <- SGD from c_{r_i};  c_{r_i} <- w_i      for i = 0, 1, ... in turn
    c_k     <- mean of w_i over the clients with r_i = k, by examples

  Its trainer changes the center in place (`vector_to_parameters` shares memory), so
  that a client starts from the model of the one before. Hence the center nearest to
  w_i is always c_{r_i}, and no client moves. After `warmup` rounds of one cluster and
  one more for the models, k-means++ draws K of them as centers, and each client joins
  the nearest.
  """

  def init(key, data):
    centers = tree.repeat(local.model.init(key), num_clusters)
    clusters = jnp.zeros(data.num_clients, jnp.int32)
    seed = jax.random.randint(key, (), 0, 2**30)
    return ChainState(centers, clusters, jnp.int32(0), seed)

  def step(state, data, cohort, key):
    def train(carry, position):
      centers, sums, counts = carry
      k, size = state.assignment[position], data.sizes(position[None])[0]
      start = ClientModels(tree.take(centers, k[None]))
      alone = _alone(local, data, jnp.asarray(data.client_ids)[position], cohort)
      trained = train_cohort(local, start, data, alone, key)
      model = tree.unstack(trained.params, 0)
      centers = jax.tree.map(lambda c, w: c.at[k].set(w), centers, model)
      sums = jax.tree.map(lambda s, w: s.at[k].add(size * w), sums, model)
      return (centers, sums, counts.at[k].add(size)), (model, trained.info())

    positions = data.positions(jnp.arange(data.num_clients))
    carry = state.centers, tree.zeros_like(state.centers), jnp.zeros(num_clusters)
    (_, sums, counts), (models, infos) = jax.lax.scan(train, carry, positions)
    means = jax.tree.map(
      lambda s: s / counts.reshape(-1, *[1] * (s.ndim - 1)).clip(1), sums
    )
    centers = jax.vmap(tree.where)(counts > 0, means, state.centers)
    info = RoundInfo(
      infos.train_loss.mean(), infos.failed.sum(), infos.trained.sum(),
      infos.steps.sum(), updates=tree.put(models, positions, models),
    )  # fmt: skip
    return state._replace(centers=centers, rounds=state.rounds + 1), info

  def between(state: ChainState, info: RoundInfo) -> Any:
    models, info = info.updates, info._replace(updates=None)
    if int(state.rounds) != warmup + 1:
      return state, info
    from sklearn.cluster import kmeans_plusplus  # Slow to import.

    leaves = jax.tree.leaves(processes.on_host(models))
    rows = np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)
    seeds, drawn = kmeans_plusplus(rows, num_clusters, random_state=int(state.seed))
    nearest = ((rows[:, None] - seeds[None]) ** 2).sum(axis=2).argmin(axis=1)
    centers = tree.take(models, jnp.asarray(drawn))
    clusters = jnp.asarray(nearest, jnp.int32)
    return state._replace(centers=centers, assignment=clusters), info

  return Algorithm(local, init, step, deployed, between)
