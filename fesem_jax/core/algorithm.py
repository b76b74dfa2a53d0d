"""The types of a federated method: its functions, models and reports."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import offloading, tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traffic import Traffic
from fesem_jax.core.types import Cohort, Params
from fesem_jax.utils.errors import check


class ClientModels(NamedTuple):
  """The models that clients start from or deploy, each stored once.

  Each layer is shared by all clients, chosen by each client among several models, or
  personal. `shared` and `own` both have the structure of one model, with None in place
  of the layers of the other; one without any layers is None.

  Attributes:
    shared: [R, ...] one global model (R = 1) or R centers.
    choice: [M] int32 index of each client's model among the R; None if all clients use
      the first.
    own: [M, ...] personal model or personal layers of each client.
    mixture: [M, R] float32 weights that add up to 1 for each client, which predicts
      with the weighted mean of the R models' class probabilities; `choice` and `own`
      are then None.
    membership: [M, K] float32 degree to which each client belongs to each of K
      clusters, if all clients have personal models; it is reported only, and no model
      depends on it.
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
    """[M, ...] the complete model of each client, one copy each.

    Args:
      count: M.

    Raises:
      ValueError: if clients use a mixture.
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
    """True if clients have clusters; does not depend on the arrays' values."""
    return any(x is not None for x in (self.choice, self.mixture, self.membership))

  def clusters(self) -> jax.Array | None:
    """[M] int32 cluster of each client; None without clusters.

    For a mixture or memberships, the index of the greatest weight.
    """
    for weights in (self.mixture, self.membership):
      if weights is not None:
        return weights.argmax(axis=1).astype(jnp.int32)
    return self.choice

  def num_clusters(self) -> int:
    """Number of clusters: R, or K for memberships."""
    if self.membership is not None:
      return self.membership.shape[1]
    return self.num_models()

  def num_models(self) -> int:
    """R; 0 if no layer is shared."""
    leaves = jax.tree.leaves(self.shared)
    return leaves[0].shape[0] if leaves else 0


class Clusters(NamedTuple):
  """The report of a clustered method on a round; see `RoundInfo.clusters`.

  Attributes:
    assignment: [M] int32 cluster of each client; K for a client that has not joined.
    sizes: [K] int32 clients in each cluster; clients without examples, which pad the
      data, do not count.
    moved: [] int32 clients whose cluster changed in this round.
    objective: [] float32 Eq. 6, the mean squared distance of the round's
      clients to their centers; None if the method does not measure it.
    objective_parts: [] float32 Eq. 6 after the local step, with the initial clusters
      and centers of the round, and after the E-step; None if not tracked.
    took_part: [S] bool, True for clients of the round that counted; None if unknown.
  """

  assignment: jax.Array
  sizes: jax.Array
  moved: jax.Array
  objective: jax.Array | None = None
  objective_parts: tuple[jax.Array, jax.Array] | None = None
  took_part: jax.Array | None = None


class ClientRound(NamedTuple):
  """The outcome of each client of a round."""

  ids: jax.Array  # [S] int32 positions in the data; M for an empty slot
  loss: jax.Array  # [S] float32 mean loss of the examples during local training
  finite: jax.Array  # [S] bool, False for a client whose update was not finite
  arrived: jax.Array  # [S] bool, False for a client that dropped out
  steps: jax.Array  # [S] int32 local steps


class RoundInfo(NamedTuple):
  """The report of a method on a round.

  Attributes:
    train_loss: [] float32 mean loss of the examples during local training.
    failed: [] int32 number of clients with an update that is not finite; these updates
      are not used.
    trained: [] int32 number of clients whose update was used.
    steps: [] int32 SGD steps of all clients together.
    clusters: see `Clusters`. If None, the run derives clusters, their sizes and the
      number of clients that moved from `Algorithm.deployed` after each round.
    updates: input of `Algorithm.between`; not kept.
    clients: see `ClientRound`; None if the method does not report it or no callback
      needs it, in which case the program of a round does not compute it.
  """

  train_loss: jax.Array
  failed: jax.Array
  trained: jax.Array
  steps: jax.Array
  clusters: Clusters | None = None
  updates: Any = None
  clients: ClientRound | None = None


class _Parts(NamedTuple):
  local: LocalTraining
  init: Callable[..., Any]
  step: Callable[..., tuple[Any, RoundInfo]]
  deployed: Callable[[Any, FederatedData], ClientModels]
  between: Callable[[Any, RoundInfo], tuple[Any, RoundInfo]] | None = None
  train: Callable[..., Any] | None = None
  with_centers: Callable[[Any, Params, jax.Array], Any] | None = None
  traffic: Traffic | None = None
  of_unseen: Callable[[Any, FederatedData], ClientModels] | None = None
  of_data: Callable[..., FederatedData] | None = None
  made_by: Any = None


class Algorithm(_Parts):
  """A federated method as pure functions over an explicit state.

  `_replace` refuses another `local`, with which the functions would not train.

  Attributes:
    local: local training, as passed to the method; it also fine-tunes deployed models,
      even if a round takes other steps (FedSGD).
    init: (key, data) -> state, a NamedTuple of arrays; see also `with_centers`.
    step: (state, data, cohort, key) -> (state, RoundInfo): one round, compiled.
    deployed: (state, data) -> `ClientModels` of all M clients, including those outside
      recent cohorts; data is the training split.
    between: (state, RoundInfo) -> (state, RoundInfo), called on the host after each
      round; None if the method makes no decisions on the host.
    train: (local, state, data, cohort, key, reduction) -> `Trained`, only the local
      training of a round; None if that is plain SGD from the deployed model.
    with_centers: (state, centers [K, ...], stays [K] bool) -> the state with these
      centers; those with `stays` have not moved. `algorithms.wrappers` can wrap only
      methods that define it; their state has `centers`, `rounds` and `assignment`, from
      which clients start, their `step` heeds `Cohort.keep_clusters`, and their `init`
      takes `cohort`.
    traffic: messages between the server and the clients; None for one model each way.
    of_unseen: (state, data) -> `ClientModels` of clients that did not take part, if the
      method does not choose them by their losses; None if they use the deployed model
      of lowest training loss.
    of_data: train -> train, what `simulate` does to a training split before the run,
      as `data.with_weights`; None leaves it as it is.
    made_by: the function of this package that made it and its options, for config.json
      (`made_by.recorded`); None for a method of your own.
  """

  __slots__ = ()

  def _replace(self, **changes: Any) -> 'Algorithm':
    check('local' not in changes, 'local: a method trains with its own; build it again')
    return super()._replace(**changes)

  __replace__ = _replace

  def client_params(self, state: Any, data: FederatedData, ids: jax.Array) -> Params:
    """[S, ...] parameters that clients `ids` [S] deploy, one copy each."""
    cohort = Cohort(jnp.asarray(ids), everyone=False)
    return self.deployed(state, data).of(cohort).params(cohort.ids.shape[0])
