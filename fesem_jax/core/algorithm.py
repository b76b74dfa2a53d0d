"""The types of a federated method: its functions, its models and what it reports."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import offloading, tree
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traffic import Traffic
from fesem_jax.core.types import Cohort, FederatedData, Params


class ClientModels(NamedTuple):
  """The models that clients start from or deploy, each stored once.

  A layer is one model's for all clients, one of several that clients choose from, or
  each client's own: `shared` and `own` both have the structure of one model, with None
  in place of the layers that the other one holds, or are None if they hold none.

  Attributes:
    shared: [R, ...] one global model (R = 1) or R centers.
    choice: [M] int32 which of the R models each client uses; None if all use the first.
    own: [M, ...] client i's own model, or its own layers.
    mixture: [M, R] float32 weights that add up to 1 for each client, which predicts
      with the weighted mean of the R models' class probabilities; `choice` and `own`
      are then None.
    membership: [M, K] float32 how much each client belongs to each of K clusters, where
      all have models of their own; it is reported, and no model depends on it.
  """

  shared: Params = None
  choice: jax.Array | None = None
  own: Params = None
  mixture: jax.Array | None = None
  membership: jax.Array | None = None

  def of(self, cohort: Cohort) -> 'ClientModels':
    """The models of a cohort's clients: [S] in place of [M]."""
    return ClientModels(self.shared, *tree.rows_of(tuple(self[1:]), cohort))

  def params(self, count: int) -> Params:
    """[M, ...] every client's model in full, one copy each.

    Args:
      count: M.

    Raises:
      ValueError: of clients that use a mixture.
    """
    if self.mixture is not None:
      raise ValueError('Clients that use a mixture have no single model.')
    own = self.own
    if offloading.is_offloaded(own):
      own = own.fetch(jnp.arange(count))
    if self.shared is None:
      return own
    first = jnp.zeros(count, jnp.int32)
    ids = first if self.choice is None else self.choice
    chosen = tree.rows_of_few(self.shared, ids)
    return chosen if own is None else tree.merge(chosen, own)

  def has_clusters(self) -> bool:
    """Whether clients have clusters; known without the arrays' values."""
    return any(x is not None for x in (self.choice, self.mixture, self.membership))

  def clusters(self) -> jax.Array | None:
    """[M] int32 cluster of each client; None where clients have no clusters.

    Of a mixture, the model of greatest weight; of memberships the greatest.
    """
    for weights in (self.mixture, self.membership):
      if weights is not None:
        return weights.argmax(axis=1).astype(jnp.int32)
    return self.choice

  def num_clusters(self) -> int:
    """How many clusters clients may have: R, or K of memberships."""
    if self.membership is not None:
      return self.membership.shape[1]
    return self.num_models()

  def num_models(self) -> int:
    """R; 0 where no layer is shared."""
    leaves = jax.tree.leaves(self.shared)
    return leaves[0].shape[0] if leaves else 0


class Clusters(NamedTuple):
  """What a clustered method reports of a round, see `RoundInfo.clusters`.

  Attributes:
    assignment: [M] int32 cluster of each client; K of one that has yet to join.
    sizes: [K] int32 clients in each cluster; clients without examples, which pad the
      data, do not count.
    moved: [] int32 clients whose cluster changed in this round.
    objective: [] float32 Eq. 6, the mean squared distance of the round's
      clients to their centers; None if the method does not measure it.
    objective_parts: [] float32 Eq. 6 after the local step, with the clusters and
      centers that the round began with, and after the E-step; None if not tracked.
    took_part: [S] bool which of the round's clients counted; None if not told.
  """

  assignment: jax.Array
  sizes: jax.Array
  moved: jax.Array
  objective: jax.Array | None = None
  objective_parts: tuple[jax.Array, jax.Array] | None = None
  took_part: jax.Array | None = None


class ClientRound(NamedTuple):
  """What became of each client of a round.

  Attributes:
    ids: [S] int32 positions in the data; M in an empty place.
    loss: [S] float32 mean loss of the examples as local training visited them.
    finite: [S] bool, False for a client whose update was not finite.
    arrived: [S] bool, False for a client that dropped out.
    steps: [S] int32 local steps.
  """

  ids: jax.Array
  loss: jax.Array
  finite: jax.Array
  arrived: jax.Array
  steps: jax.Array


class RoundInfo(NamedTuple):
  """What every method reports of a round.

  Attributes:
    train_loss: [] float32 mean cross entropy of the examples as local training
      visited them.
    failed: [] int32 clients whose update was not finite; they were left out.
    trained: [] int32 clients whose update was used.
    steps: [] int32 SGD steps of all clients together.
    clusters: see `Clusters`. Where it is None, a run takes clusters, their sizes and
      the clients that moved from what `Algorithm.deployed` gives after each round.
    updates: what `Algorithm.between` wants to know of the round; not kept.
    clients: see `ClientRound`; None if the method does not tell, or nobody asks: the
      program of a round then leaves it out.
  """

  train_loss: jax.Array
  failed: jax.Array
  trained: jax.Array
  steps: jax.Array
  clusters: Clusters | None = None
  updates: Any = None
  clients: ClientRound | None = None


class Algorithm(NamedTuple):
  """A federated method as pure functions over an explicit state.

  Attributes:
    local: how clients train, as the method was given it; deployed models are
      fine-tuned with it too, also where a round itself takes other steps (FedSGD).
    init: (key, data) -> state, a NamedTuple of arrays; see also `with_centers`.
    step: (state, data, cohort, key) -> (state, RoundInfo): one round, compiled.
    deployed: (state, data) -> `ClientModels` of all M clients, whether or not they
      were drawn lately; data is the training split.
    between: (state, RoundInfo) -> the same, on the host after each round; None for
      all methods but those that decide there.
    train: (local, state, data, cohort, key, reduction) -> `Trained`, a round's local
      training alone; None where that is plain SGD from the deployed model.
    with_centers: (state, centers [K, ...], stays [K] bool) -> the state with these
      centers, of which those that stay are where they were. It makes a method one that
      `algorithms.wrappers` may wrap, whose state has `centers` and `assignment`, whose
      `step` takes the arguments `starts` and `hold`, and whose `init` takes `cohort`;
      None for all others.
    traffic: what the server and the clients send each other; None if that is not
      known.
    of_unseen: (state, data) -> `ClientModels` of clients that took no part, where the
      method chooses them by other means than their losses; None where they take the
      deployed model of least training loss.
  """

  local: LocalTraining
  init: Callable[..., Any]
  step: Callable[..., tuple[Any, RoundInfo]]
  deployed: Callable[[Any, FederatedData], ClientModels]
  between: Callable[[Any, RoundInfo], tuple[Any, RoundInfo]] | None = None
  train: Callable[..., Any] | None = None
  with_centers: Callable[[Any, Params, jax.Array], Any] | None = None
  traffic: Traffic | None = None
  of_unseen: Callable[[Any, FederatedData], ClientModels] | None = None

  def client_params(self, state: Any, data: FederatedData, ids: jax.Array) -> Params:
    """[S, ...] params that clients `ids` [S] deploy, one copy each."""
    cohort = Cohort(jnp.asarray(ids), everyone=False)
    return self.deployed(state, data).of(cohort).params(cohort.ids.shape[0])
