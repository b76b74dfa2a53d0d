"""Local training of a cohort, and what becomes of its models."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from fesem_jax.cohorts.sampling import client_keys, coin
from fesem_jax.core import batching, client_map, prng_streams
from fesem_jax.core.algorithm import ClientModels, Clusters, RoundInfo
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import add_to_one, no_sums, total
from fesem_jax.core.types import Cohort, FederatedData, Params
from fesem_jax.training import shared_kernels
from fesem_jax.training.local_sgd import Vary, train_chunk
from fesem_jax.training.sent_models import as_sent
from fesem_jax.training.shared_start import SharedStart


class Correction(NamedTuple):
  """What is added to every gradient of client i: `common` - `own`[i].

  Attributes:
    common: [1, ...].
    own: [S, ...].
    applies: [] bool, False adds nothing.
    vary: (step, params, that difference) -> what is added at this local step, counted
      from 0, of one client; None adds the same at every step.
    replaced: whether what `fold` keeps of each client takes the place of its own part,
      which it finds in `Trained.correction`.
  """

  common: Params
  own: Params
  applies: jax.Array | bool = True
  vary: Vary | None = None
  replaced: bool = False


WEIGHTINGS = ('uniform', 'by_examples')


class Stays(NamedTuple):
  """What is done with a chunk of clients that surely stay with where they started.

  Where kernels share their start and no model is kept, none is formed then. Where
  models are kept, only `Trained.moved` is told.

  Attributes:
    sure: (a chunk's starts, squared distances [C] of the local models to them, `known`)
      -> [C] bool, who does.
    fold: (a chunk's `Trained` without models, its starts, sums, add) -> what `fold`
      returns; add (a `ClusterSums` of all centers, weights [C]) adds the local models
      to it.
  """

  sure: Callable[[ClientModels, jax.Array, Any], jax.Array]
  fold: Callable[..., tuple[Any, Any]]


class Trained(NamedTuple):
  """Outcome of local training of a cohort, or of one chunk of it.

  Attributes:
    ids: [S] int32 positions in the data; M in an empty place.
    params: [S, ...] local models as clients send them; a client that failed or
      dropped out keeps its start. None where they were only summed up.
    loss: [S] float32 mean cross entropy of the examples as they were visited.
    sizes: [S] int32 training examples; 0 in an empty place.
    finite: [S] bool, False for a client whose update was not finite.
    arrived: [S] bool, False for a client that dropped out.
    steps: [S] int32 SGD steps taken.
    folded: tree of [S, ...], what `fold` made of each client; see `train_cohort`.
    sums: what `fold` added up.
    correction: [C, ...] own part of each client's `Correction` where `fold` is to
      replace it; None elsewhere.
    moved: [C] float32 squared distance of each local model to its start, where that is
      known without a look at the model and `stays` asks for it; None elsewhere.
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
  correction: Params = None
  moved: jax.Array | None = None

  def took_part(self) -> jax.Array:
    """[S] bool: clients whose update counts."""
    return self.finite & self.arrived & (self.sizes > 0)

  def weights(self, weighting: str) -> jax.Array:
    """[S] float32 weight of each client in a mean.

    Args:
      weighting: one of `WEIGHTINGS`: n_i, or 1 for every client that counts.
    """
    counts = self.took_part()
    weights = self.sizes if weighting == 'by_examples' else 1
    return jnp.where(counts, weights, 0).astype(jnp.float32)

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
    )


# (a chunk's Trained, its starts, sums) -> tree of [C, ...] to keep, sums.
Fold = Callable[..., tuple[Any, Any]]


def train_cohort(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  *,
  anchor: ClientModels | None = None,
  prox: jax.Array | float | None = None,
  correction: Correction | None = None,
  epochs: jax.Array | None = None,
  layers: Sequence[str] | None = None,
  fold: Fold | None = None,
  mean_by: str = '',
  known: Any = None,
  sums: Any = None,
  keep: bool = True,
  into: Params | None = None,
  sends: bool = True,
  sends_own: bool = False,
  stays: Stays | None = None,
) -> Trained:
  """Trains every client of the cohort from its start: one compiled loop.

  Methods that need only sums of the local models add each chunk's as soon as it
  has finished, while it is in the cache; then nothing of size S * P exists.

  Args:
    local: see `LocalTraining`.
    starts: the cohort's S models to start from. Where they are the clients' own, the
      local models take their memory.
    data: training split.
    cohort: S clients; S is a multiple of the device count.
    key: key of this round; each client folds its id into it.
    anchor: the cohort's S models that `prox` pulls to; their starts by default.
    prox: [] or [S] float32, adds `prox * |w - anchor|^2` to the loss (Eq. 7), or
      None, which is faster than 0.
    correction: see `Correction`, or None.
    epochs: [S] int32 local epochs in place of the schedule's, for stragglers.
    layers: names of the layers that learn; None is all.
    fold: called with a chunk's `Trained`, its starts, of which `shared` is as above,
      and sums; returns a tree of [C, ...] to keep, which must not depend on the sums,
      and the sums with the chunk's added. `Trained.ids` says whose the chunk is.
    mean_by: a weighting, in place of `fold`: adds up the models of clients that all
      start from one, less that one, in `Trained.sums`, a `sums.ClusterSums`.
    known: arrays, whole on every device, that `fold` gets as a fourth argument; None
      if it takes three.
    sums: what `fold` adds to, all zeros.
    keep: whether to return the local models too.
    into: [S, ...] old models whose memory they may take.
    sends: whether clients then send their models, about which bad ones may lie; see
      `corruption.as_sent`.
    sends_own: whether that holds for models that are the clients' own too.
    stays: what may take the place of `fold`, see `Stays`.

  Returns:
    `Trained`, split over the mesh.

  Raises:
    AssertionError: if something of the cohort's clients is not of S clients.
  """
  parts = (starts[1:], anchor and anchor[1:], correction and correction.own, epochs)
  chex.assert_tree_shape_prefix(parts, cohort.ids.shape)
  sizes = data.sizes(cohort.ids)
  steps = batching.num_steps(local.schedule, sizes, data.max_examples, epochs)
  arrived = ~coin(key, data, cohort.ids, local.dropout_rate, prng_streams.DROPOUT)
  steps = jnp.where(arrived, steps, 0)
  if prox is not None:
    prox = jnp.broadcast_to(jnp.asarray(prox, jnp.float32), sizes.shape)
  in_place = keep and starts.shared is None  # The clients' own: read, then replaced.
  if in_place:
    starts, into = starts._replace(own=None), starts.own
  if mean_by:
    sums = no_sums(starts.shared)

  def own_of(models):
    return None if models is None else models._replace(shared=None)

  own_part = None if correction is None else correction.own
  old_part, nothing = None, Trained._make([None] * len(Trained._fields))
  if correction is not None and correction.replaced:  # Read, then replaced.
    own_part, old_part = None, own_part
  own = (steps, arrived, prox, own_part, own_of(starts), own_of(anchor))

  def shared_of(models):
    return None if models is None else models.shared

  shared_part = None if correction is None else (correction.common, correction.applies)
  rate = local.rate(cohort)
  # Corrections, and penalties towards other models, change whole kernels.
  changes_alone = correction is None and anchor is None
  alike = local if changes_alone else local._replace(shared_start='off')
  kernels, together = shared_kernels.choose(
    alike, starts, data, cohort.ids.shape[0], layers
  )
  unformed = bool(mean_by and kernels and data.corruption is None)
  stays = stays if kernels and data.corruption is None else None
  # Whether the models of a chunk are looked at is decided chunk by chunk.
  decides = stays is not None and not keep
  # Few whole models at a time, so that they stay in the cache.
  at_a_time = together if unformed else local.clients_per_chunk
  models = shared_of(starts), shared_of(anchor)
  shared = (*models, shared_part, data, key, rate, known)

  def body(chunk, shared, sums):
    steps, arrived, prox, own_part, start, pull_to = chunk.own
    models, anchors, shared_part, data, key, rate, known = shared
    count = arrived.shape[0]
    start = start._replace(shared=models)
    if in_place:
      start = start._replace(own=chunk.into[0])
    if pull_to is not None:
      pull_to = pull_to._replace(shared=anchors).params(count)
    old_correction = None
    if old_part is not None:
      own_part = old_correction = chunk.into[1].folded
    added = vary = None
    if correction is not None:
      vary, (common, applies) = correction.vary, shared_part
      apart = jax.tree.map(jnp.subtract, common, own_part)
      added = jax.tree.map(lambda x: jnp.where(applies, x, 0.0), apart)
    sizes = data.sizes(chunk.ids)
    steps = jnp.where(sizes > 0, steps, 0)
    keys = client_keys(key, data, chunk.ids)
    exist = chunk.ids < data.num_clients
    rest, start_together = shared_kernels.split(local, start, kernels, exist)
    ends = train_chunk(
      local,
      data,
      rest.params(count),
      chunk.ids,
      steps,
      keys,
      shared=start_together,
      anchor=pull_to,
      prox=prox,
      correction=added,
      vary=vary,
      layers=layers,
      rate=rate,
    )

    moved = None
    if stays is not None:
      moved = start_together.squared_moves(
        ends.params, rest.params(count), ends.changes, ends.finite
      )
    trained = Trained(
      chunk.ids, None, ends.loss, sizes, ends.finite, arrived, steps,
      correction=old_correction, moved=moved,
    )  # fmt: skip
    clients = trained, ends.params, ends.changes, start._replace(shared=None), keys
    of_all = start_together.starts, models, data, known
    if not decides:
      return (clients, of_all), sums
    assert stays is not None
    assert moved is not None

    def looked_at(sums):
      def finish_some(clients, sums):
        return finish(clients, of_all, sums)

      return client_map.in_parts(finish_some, clients, at_a_time, sums, exist)

    def not_looked_at(sums):
      add = functools.partial(add_unformed, clients, of_all)
      folded, sums = stays.fold(trained, start, sums, add)
      return (None, trained._replace(folded=folded, moved=None)), sums

    sure = stays.sure(start, moved, known) | ~trained.took_part()
    return jax.lax.cond(sure.all(), not_looked_at, looked_at, sums)

  def shared_start(starts):
    return SharedStart(kernels, starts, precision=local.precision)

  def add_unformed(clients, of_all, sums, weights):
    trained, params, changes, start, _ = clients
    starts, models, _, _ = of_all
    choice = jnp.zeros_like(trained.ids) if start.choice is None else start.choice
    return shared_start(starts).add_to(
      sums, params, changes, trained.finite, weights, choice, models
    )

  def finish(clients, of_all, sums):
    """What becomes of trained clients: results, and the sums with theirs."""
    trained, params, changes, start, keys = clients
    starts, models, data, known = of_all
    if unformed:
      sums = add_unformed(clients, of_all, sums, trained.weights(mean_by))
      return (None, trained), sums
    start = start._replace(shared=models)
    params = shared_start(starts).models(params, changes, trained.finite)
    if sends:
      told = start
      if sends_own:
        told = ClientModels(start.own, jnp.arange(trained.ids.shape[0]))
      params = as_sent(data, trained.ids, told, params, keys)
    trained, folded = trained._replace(params=params), None
    if mean_by:
      sums = add_to_one(sums, params, trained.weights(mean_by), models)
    if fold is not None:
      more = () if known is None else (known,)
      folded, sums = fold(trained, start, sums, *more)
    kept = params if keep else None
    trained = trained._replace(params=None, folded=folded, correction=None, moved=None)
    return (kept, trained), sums

  (params, trained), sums = client_map.map_clients(
    body,
    cohort.ids,
    steps,
    own,
    shared,
    empty=data.num_clients,
    mesh=local.mesh,
    clients_per_chunk=together,
    sums=sums,
    into=(into, nothing._replace(folded=old_part)),
    replaces=in_place or old_part is not None,
    group=starts.choice if kernels else None,
    num_groups=starts.num_models(),
    finish=None if decides else finish,
    clients_per_part=at_a_time,
  )
  return trained._replace(ids=cohort.ids, params=params, sums=sums)
