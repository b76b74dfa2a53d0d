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

  A layer is shared by all clients, chosen by each client among several models, or
  personal. `shared` and `personal` have the structure of one model, with None for the
  layers of the other; one without layers is None.

  Attributes:
    shared: [R, ...] one global model (R = 1) or R centers.
    choice: [M] int32 index of each client's model among the R; None is the first.
    personal: [M, ...] personal models or layers.
    mixture: [M, R] float32 weights that sum to 1; clients predict with the weighted
      mean of the R models' class probabilities, without `choice` and `personal`.
    membership: [M, K] float32 degrees of membership in K clusters, only reported.
  """

  shared: Params = None
  choice: jax.Array | None = None
  personal: Params = None
  mixture: jax.Array | None = None
  membership: jax.Array | None = None

  def of(self, cohort: Cohort) -> 'ClientModels':
    """The models of the S clients of a cohort."""
    return ClientModels(self.shared, *tree.rows_of(tuple(self[1:]), cohort))

  def params(self, count: int) -> Params:
    """[count, ...] the complete model of each client; `ValueError` for a mixture."""
    if self.mixture is not None:
      raise ValueError('mixture: clients have no single model')
    personal = self.personal
    if offloading.is_offloaded(personal):
      personal = personal.fetch(jnp.arange(count))
    if self.shared is None:
      return personal
    first = jnp.zeros(count, jnp.int32)
    ids = first if self.choice is None else self.choice
    chosen = tree.rows_of_few(self.shared, ids)
    return chosen if personal is None else tree.merge(chosen, personal)

  def has_clusters(self) -> bool:
    """True if clients have clusters, whatever the values of the arrays."""
    return any(x is not None for x in (self.choice, self.mixture, self.membership))

  def clusters(self) -> jax.Array | None:
    """[M] int32 cluster of each client, that of the greatest weight; None without."""
    for weights in (self.mixture, self.membership):
      if weights is not None:
        return weights.argmax(axis=1).astype(jnp.int32)
    return self.choice

  def num_clusters(self) -> int:
    """K."""
    if self.membership is not None:
      return self.membership.shape[1]
    return self.num_models()

  def num_models(self) -> int:
    """R; 0 if no layer is shared."""
    leaves = jax.tree.leaves(self.shared)
    return leaves[0].shape[0] if leaves else 0


class Clusters(NamedTuple):
  """The report of a clustered method on a round.

  Attributes:
    assignment: [M] int32 clusters; K for a client that has not joined.
    sizes: [K] int32 clients of each cluster, without padding.
    moved: [] int32 clients whose cluster changed.
    objective: [] float32 Eq. 6, the mean squared distance of the round's clients to
      their centers; None if not measured.
    objective_parts: [] float32 Eq. 6 after the local step and after the E-step, both
      with the round's initial centers; None if not tracked.
    took_part: [S] bool, True for clients that counted; None if unknown.
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
    failed: [] int32 clients left out because their update is not finite.
    trained: [] int32 clients whose update was used.
    steps: [] int32 SGD steps of all clients.
    clusters: None lets the run derive them from `Algorithm.deployed`.
    updates: input of `Algorithm.between`, then dropped.
    clients: None if not reported, or if no callback needs it.
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
  unseen_models: Callable[[Any, FederatedData], ClientModels] | None = None
  prepare_data: Callable[..., FederatedData] | None = None
  made_by: Any = None


class Algorithm(_Parts):
  """A federated method as pure functions over an explicit state.

  `_replace` refuses `local`, with which the functions were built.

  Attributes:
    local: local training, with which deployed models are also fine-tuned.
    init: (key, data) -> state, a NamedTuple of arrays.
    step: (state, data, cohort, key) -> (state, RoundInfo), compiled.
    deployed: (state, data) -> `ClientModels` of all M clients; data is the training
      split.
    between: (state, RoundInfo) -> both, on the host after each round, or None.
    train: (local, state, data, cohort, key, reduction) -> `Trained`, the local training
      of a round; None is plain SGD from the deployed models.
    with_centers: (state, centers [K, ...], stays [K] bool) -> state with these centers;
      those with `stays` have not moved. For `algorithms.wrappers`, which also need
      `centers`, `rounds` and `assignment` in the state, and `cohort` in `init`.
    traffic: messages of server and clients; None is one model each way.
    unseen_models: (state, data) -> `ClientModels` of other clients; None deploys the
      model of lowest training loss.
    prepare_data: train -> train, applied once before the run, or None.
    made_by: the function that built it and its options, for config.json.
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
