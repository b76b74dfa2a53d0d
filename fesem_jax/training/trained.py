"""Outcome of a cohort's local training, and its reduction chunk by chunk."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from fesem_jax.core import parameter_names, tree
from fesem_jax.core.algorithm import ClientModels, ClientRound, Clusters, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import add_to_one, are_clipped, no_sums, total
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training import sent_models
from fesem_jax.training.one_client import Client, LocalModel
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.ranges import check_choice

Weighting = Literal['uniform', 'by_examples', 'by_weight']
WEIGHTINGS = get_args(Weighting)


def weights_by(
  weighting: str, sizes: jax.Array, data_weights: jax.Array | None
) -> jax.Array | int:
  """[S] weights of clients by their `sizes` [S] or those of the data, or 1.

  Raises `UserError` on an unknown weighting, or if it needs weights that data lack.
  """
  check_choice('weighting', weighting, WEIGHTINGS)
  if weighting == 'by_weight':
    if data_weights is None:
      raise UserError('weighting: by_weight needs data with ClientInfo.weights')
    return data_weights
  return sizes if weighting == 'by_examples' else 1


class Trained(NamedTuple):
  """Outcome of local training of a cohort, or of one chunk of it.

  Attributes:
    ids: [S] int32 positions in the data; M in an empty slot.
    params: [S, ...] models as clients send them, the start where one failed or dropped
      out; None if they were only added up.
    loss: [S] float32 mean loss of the examples during local training.
    sizes: [S] int32 training examples; 0 in an empty slot.
    finite: [S] bool, False for a client whose update was not finite.
    arrived: [S] bool, False for a client that dropped out.
    steps: [S] int32 local steps taken.
    folded: tree of [S, ...] values that `fold` returned of clients; see `Reduction`.
    sums: the sums of `fold`.
    state: [S, ...] new states of clients, or None.
    data_weights: [S] float32 weights of the clients in the data, or None.
  """

  ids: jax.Array
  params: Params
  loss: jax.Array
  sizes: jax.Array
  finite: jax.Array
  arrived: jax.Array
  steps: jax.Array
  folded: Any = None
  sums: Any = None
  state: Any = None
  data_weights: jax.Array | None = None

  def took_part(self) -> jax.Array:
    """[S] bool: clients whose update counts."""
    return self.finite & self.arrived & (self.sizes > 0)

  def weights(self, weighting: str) -> jax.Array:
    """[S] float32 weight of each client in a mean, 0 if it does not count.

    Raises `UserError` on an unknown weighting, or by sizes if sums are clipped.
    """
    bounded = weighting == 'uniform' or not are_clipped()
    check(bounded, 'weighting: dp=server needs uniform, as sizes are not bounded')
    weights = weights_by(weighting, self.sizes, self.data_weights)
    return jnp.where(self.took_part(), weights, 0).astype(jnp.float32)

  def together_with(self, other: 'Trained') -> 'Trained':
    """The outcome of clients that also trained `other` in the round."""
    finite, steps = self.finite & other.finite, self.steps + other.steps
    return self._replace(finite=finite, steps=steps)

  def mean_loss(self) -> jax.Array:
    """[] float32: mean of `loss` over the clients that count, by examples."""
    weights = self.weights('by_examples')
    losses = total(jnp.where(weights > 0, self.loss * weights, 0.0))
    return losses / jnp.maximum(total(weights), 1.0)

  def info(self, clusters: Clusters | None = None) -> RoundInfo:
    """Sums up the round."""
    return RoundInfo(
      train_loss=self.mean_loss(),
      failed=(~self.finite & (self.sizes > 0)).sum(),
      trained=self.took_part().sum(),
      steps=self.steps.sum(),
      clusters=clusters,
      clients=ClientRound(self.ids, self.loss, self.finite, self.arrived, self.steps),
    )


# (a chunk's Trained, its starts, sums) -> tree of [C, ...] to keep, sums.
Fold = Callable[..., tuple[Any, Any]]


class Reduction(NamedTuple):
  """The reduction of what the clients of a cohort send.

  Attributes:
    fold: (chunk's `Trained`, its starts, sums) -> tree of [C, ...] to keep, and sums.
    sums: the initial sums, all zeros.
    broadcast: fourth argument of `fold`, whole on every device; None: it has three.
    keep: whether the local models are returned too.
    into: [S, ...] old models whose memory they may take.
    sent: what clients send, and attacks falsify: the layers that they received
      ('shared'), personal models too ('personal'), or 'nothing'.
    mean_by: the weighting of `mean_of_models`, '' for another `fold`.
    noised: whether the caller adds the server's noise, by `privacy.means`.
  """

  fold: Fold | None = None
  sums: Any = None
  broadcast: Any = None
  keep: bool = True
  into: Params | None = None
  sent: str = 'shared'
  mean_by: str = ''
  noised: bool = False

  def sent_by(
    self, client: Client, model: LocalModel, layers: Sequence[str] | None = None
  ) -> Params:
    """The model that a client sends, of which `layers` learned; see `Client.send`."""
    received = {'shared': client.received, 'personal': client.start, 'nothing': None}
    return client.send(model, received[self.sent], layers)


def mean_of_models(weighting: str, origin: Params) -> Reduction:
  """Adds up models about `origin` [1, ...], where they start; keeps none of them."""

  def fold(trained, starts, total):
    weights = trained.weights(weighting)
    return None, add_to_one(total, trained.params, weights, starts.shared)

  return Reduction(fold, no_sums(origin), keep=False, mean_by=weighting)


def sent_at_last(
  local: LocalTraining,
  starts: ClientModels,
  trained: Trained,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
) -> Trained:
  """The clients, `trained` with `sent='nothing'`, with what they send at last."""
  if not sent_models.are_changed(data, local.sends):
    return trained

  def send(client, key, received, params):
    previous = flatten_dict(received, sep='/')
    unsent = {path: previous[path] for path in local.unsent}  # Those stay as they were.
    params = parameter_names.replaced(params, unsent)
    received = parameter_names.replaced(received, dict.fromkeys(unsent))
    return sent_models.as_sent(data, client, key, received, params, sends=local.sends)

  received = starts.params(cohort.ids.shape[0])
  keys = data.keys_of(key, cohort.ids)
  sent = jax.vmap(send)(cohort.ids, keys, received, trained.params)
  finite = trained.finite & tree.all_finite(sent)
  params = tree.where(finite, sent, received)
  return trained._replace(params=params, finite=finite)
