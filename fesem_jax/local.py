"""Local training: the one loop that every method uses (Algorithm 2)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fesem_jax import batching, sharding, streams, tree
from fesem_jax.base import Clusters, Cohort, FederatedData, Model, Params, RoundInfo
from fesem_jax.batching import Schedule
from fesem_jax.errors import UserError, check_at_least


class LocalTraining(NamedTuple):
  """How clients train, and how they are laid out on the machine.

  Attributes:
    model: see `Model`.
    optimizer: any Optax optimizer; its state starts anew in every round.
    schedule: batch size and local epochs or steps.
    clients_per_chunk: C, clients trained side by side on one device. Speed
      only: results do not depend on it.
    mesh: devices the cohort is split over; nor on this.
    dropout_rate: probability that a client of a round drops out, so that its
      update never arrives.
  """

  model: Model
  optimizer: optax.GradientTransformation
  schedule: Schedule
  clients_per_chunk: int
  mesh: Mesh
  dropout_rate: float = 0.0


def local_training(
  model: Model,
  optimizer: optax.GradientTransformation,
  *,
  num_clients: int,
  batch_size: int = 10,
  epochs: int = 1,
  steps: int = 0,
  clients_per_chunk: int = 0,
  mesh: Mesh | None = None,
  dropout_rate: float = 0.0,
) -> LocalTraining:
  """A `LocalTraining` with what is left out chosen for the machine.

  Args:
    model: see `Model`.
    optimizer: any Optax optimizer, e.g. `optax.sgd(0.1)`.
    num_clients: clients of a round.
    batch_size: see `Schedule`.
    epochs: see `Schedule`.
    steps: see `Schedule`.
    clients_per_chunk: 0 chooses by the model and the device.
    mesh: all devices by default.
    dropout_rate: see `LocalTraining`.

  Raises:
    UserError: on a number out of range.
  """
  check_at_least(0, batch_size=batch_size, clients_per_chunk=clients_per_chunk)
  check_at_least(0, local_steps=steps)
  check_at_least(1, local_epochs=epochs)
  if not 0 <= dropout_rate < 1:
    raise UserError(f'--dropout_rate={dropout_rate} must lie in [0, 1).')
  mesh = sharding.client_mesh() if mesh is None else mesh
  params = jax.eval_shape(model.init, jax.random.key(0))
  chunk = clients_per_chunk or sharding.default_clients_per_chunk(
    params, num_clients, mesh
  )
  schedule = Schedule(batch_size, epochs, steps)
  return LocalTraining(model, optimizer, schedule, chunk, mesh, dropout_rate)


class Correction(NamedTuple):
  """What is added to every gradient of client i: `common` - `own`[i].

  Attributes:
    common: [1, ...].
    own: [S, ...].
    applies: [] bool, False adds nothing.
  """

  common: Params
  own: Params
  applies: jax.Array | bool


WEIGHTINGS = ('uniform', 'by_examples')


class Trained(NamedTuple):
  """Outcome of local training of a cohort, or of one chunk of it.

  Attributes:
    params: [S, ...] local models; a client that failed or dropped out keeps
      its start. None where they were only summed up.
    loss: [S] float32 mean cross entropy of the examples as they were visited.
    sizes: [S] int32 training examples; 0 in an empty place.
    finite: [S] bool, False for a client whose update was not finite.
    arrived: [S] bool, False for a client that dropped out.
    steps: [S] int32 SGD steps taken.
    rows: tree of [S, ...], what `fold` found of each client; see `train_cohort`.
    sums: what `fold` added up.
  """

  params: Params
  loss: jax.Array
  sizes: jax.Array
  finite: jax.Array
  arrived: jax.Array
  steps: jax.Array
  rows: Any = None
  sums: Any = None

  def took_part(self) -> jax.Array:
    """[S] bool: clients whose update counts."""
    return self.finite & self.arrived & (self.sizes > 0)

  def weights(self, weighting: str) -> jax.Array:
    """[S] float32 weight of each client in a mean.

    Args:
      weighting: one of `WEIGHTINGS`: n_i, or 1 for every client that counts.
    """
    counts = self.took_part()
    return jnp.where(counts, self.sizes if weighting == 'by_examples' else 1, 0).astype(
      jnp.float32
    )

  def mean_loss(self) -> jax.Array:
    """[] float32: mean of `loss` over the clients that count, by examples."""
    weights = self.weights('by_examples')
    losses = tree.total(jnp.where(weights > 0, self.loss * weights, 0.0))
    return losses / jnp.maximum(tree.total(weights), 1.0)

  def info(self, clusters: Clusters | None = None) -> RoundInfo:
    """Sums up the round."""
    return RoundInfo(
      train_loss=self.mean_loss(),
      failed=(~self.finite & (self.sizes > 0)).sum(),
      trained=self.took_part().sum(),
      steps=self.steps.sum(),
      clusters=clusters,
    )


def weighted_cross_entropy(
  model: Model, params: Params, x: jax.Array, y: jax.Array, weights: jax.Array
) -> jax.Array:
  """[] float32: mean cross entropy of a batch over the examples of weight 1."""
  logits = model.apply(params, x)
  # With integer labels the gradient would be a scatter, which is slow.
  losses = optax.softmax_cross_entropy(logits, jax.nn.one_hot(y, logits.shape[-1]))
  return jnp.where(weights > 0, losses, 0.0).sum() / jnp.maximum(weights.sum(), 1.0)


def client_keys(key: jax.Array, data: FederatedData, ids: jax.Array) -> jax.Array:
  """[S] keys folded from (key, client id), whatever the client's position."""
  client_ids = jnp.asarray(data.client_ids).at[ids].get(mode='clip')
  return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)


# Examples that a model classifies at a time outside of training.
EVALUATION_BATCH = 128


def coin(
  key: jax.Array, data: FederatedData, ids: jax.Array, probability: float, stream: int
) -> jax.Array:
  """[S] bool: one toss for each client of a round, true with `probability`."""
  if probability == 0:
    return jnp.zeros(ids.shape, bool)
  keys = client_keys(key, data, ids)
  toss = lambda k: jax.random.bernoulli(streams.fold(k, stream), probability)
  return jax.vmap(toss)(keys)


class _Loop(NamedTuple):
  """Carry of the loop over local steps of one chunk."""

  params: Params  # [C, ...]
  opt_state: optax.OptState  # [C, ...]
  orders: jax.Array  # [C, N_max] int32 this epoch's order of examples
  loss: jax.Array  # [C] float32 sum over visited examples
  visited: jax.Array  # [C] float32


def train_chunk(
  local: LocalTraining,
  data: FederatedData,
  starts: Params,
  ids: jax.Array,
  steps: jax.Array,
  keys: jax.Array,
  prox: jax.Array | None,
  correction: Params | None,
) -> tuple[Params, jax.Array, jax.Array]:
  """Trains C clients side by side for as long as the longest of them takes.

  Args:
    local: see `LocalTraining`.
    data: training split.
    starts: [C, ...] where each client starts; also the anchor of `prox`.
    ids: [C] int32 positions in `data`.
    steps: [C] int32 local steps.
    keys: [C] keys of the clients in this round.
    prox: [C] float32, adds `prox * |w - start|^2` to the loss (Eq. 7), or None.
    correction: [C, ...] added to every gradient, or None.

  Returns:
    params [C, ...], mean loss [C], finite [C]; see `Trained`.
  """
  one = ids.shape[0] == 1
  if one:
    # Without a client axis convolutions are not grouped ones, and the loop can
    # overwrite the params in place.
    ids, steps, keys, starts, prox, correction = tree.unstack(
      (ids, steps, keys, starts, prox, correction), 0
    )
  each: Any = (lambda fn, in_axes=0: fn) if one else jax.vmap
  sizes = data.sizes(ids)
  width = batching.batch_width(local.schedule, data.max_examples)
  full_batch = batching.is_full_batch(local.schedule, data.max_examples)
  per_epoch = jnp.maximum(batching.batches_per_epoch(sizes, width), 1)

  def gather(client, order, step, size):
    rows, weights = batching.batch_rows(order, step, size, width)
    return *batching.gather(data, client, rows), weights

  def sgd_step(params, opt_state, active, batch, start, prox, correction):
    x, y, weights = batch
    loss, grads = jax.value_and_grad(
      lambda p: weighted_cross_entropy(local.model, p, x, y, weights)
    )(params)
    # All gradients before any update: the update can then overwrite the params.
    tie = sum(0 * g.ravel()[0] for g in jax.tree.leaves(grads))
    grads = jax.tree.map(lambda g: g + tie, grads)
    if prox is not None:
      pull = lambda g, w, c: g + 2 * prox * (w - c)
      grads = jax.tree.map(pull, grads, params, start)
    if correction is not None:
      grads = jax.tree.map(jnp.add, grads, correction)
    updates, new_state = local.optimizer.update(grads, opt_state, params)
    new = optax.apply_updates(params, updates), new_state
    keep = lambda a, b: jnp.where(active, a, b)
    params, opt_state = jax.tree.map(keep, new, (params, opt_state))
    count = jnp.where(active, weights.sum(), 0.0)
    return params, opt_state, jnp.where(active, loss * weights.sum(), 0.0), count

  def shuffle(epoch: jax.Array) -> jax.Array:
    epoch_keys = each(jax.random.fold_in)(keys, epoch)
    return each(batching.shuffle, (0, 0, None))(epoch_keys, sizes, data.max_examples)

  in_order = jnp.broadcast_to(
    jnp.arange(data.max_examples, dtype=jnp.int32), (*ids.shape, data.max_examples)
  )
  # With one batch per epoch the order is immaterial: gather once, never shuffle.
  whole = (
    each(gather)(ids, in_order, jnp.zeros_like(steps), sizes) if full_batch else None
  )

  def body(step: jax.Array, loop: _Loop) -> _Loop:
    if full_batch:
      orders, batch = loop.orders, whole
    else:
      epoch, position = jnp.divmod(step, per_epoch)
      orders = jax.lax.cond(
        (position == 0).any(), lambda: shuffle(epoch), lambda: loop.orders
      )
      batch = each(gather)(ids, orders, position, sizes)
    params, opt_state, loss, count = each(sgd_step)(
      loop.params, loop.opt_state, step < steps, batch, starts, prox, correction
    )
    return _Loop(params, opt_state, orders, loop.loss + loss, loop.visited + count)

  first = _Loop(
    params=starts,
    opt_state=each(local.optimizer.init)(starts),
    orders=in_order,
    loss=jnp.zeros(ids.shape),
    visited=jnp.zeros(ids.shape),
  )
  last = jax.lax.fori_loop(0, steps.max(), body, first)
  loss = last.loss / jnp.maximum(last.visited, 1.0)
  params = last.params
  if one:
    params, starts, loss = tree.expand((params, starts, loss))
  finite = tree.all_finite(params)
  return tree.where(finite, params, starts), loss, finite


# (sums, a chunk's Trained, which [C], starts [K, ...]) -> sums, rows of [C, ...].
Fold = Callable[[Any, Trained, Any, Params], tuple[Any, Any]]


def train_cohort(
  local: LocalTraining,
  starts: Params,
  which: jax.Array | None,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  *,
  prox: jax.Array | float | None = None,
  correction: Correction | None = None,
  epochs: jax.Array | None = None,
  fold: Fold | None = None,
  sums: Any = None,
  keep: bool = True,
  into: Params | None = None,
) -> Trained:
  """Trains every client of the cohort from its start: one compiled loop.

  Methods that need only sums of the local models add each chunk's as soon as it
  has finished, while it is in the cache; then nothing of size S * P exists.

  Args:
    local: see `LocalTraining`.
    starts: [K, ...] models to start from; [S, ...] where `which` is None, whose
      memory the local models then take.
    which: [S] int32 row of `starts` for each client; None: row s for client s.
    data: training split.
    cohort: S clients; S is a multiple of the device count.
    key: key of this round; each client folds its id into it.
    prox: [] or [S] float32, adds `prox * |w - start|^2` to the loss (Eq. 7), or
      None, which is faster than 0.
    correction: see `Correction`, or None.
    epochs: [S] int32 local epochs in place of the schedule's, for stragglers.
    fold: called with sums to add to, a chunk's `Trained`, its `which` and `starts`;
      returns the sums with the chunk's added, and rows [C, ...] to keep. Rows must
      not depend on the sums.
    sums: what `fold` adds to, all zeros.
    keep: whether to return the local models too.
    into: [S, ...] old models whose memory they may take.

  Returns:
    `Trained`, split over the mesh.
  """
  sizes = data.sizes(cohort.ids)
  steps = batching.num_steps(local.schedule, sizes, data.max_examples, epochs)
  arrived = ~coin(key, data, cohort.ids, local.dropout_rate, streams.DROPOUT)
  steps = jnp.where(arrived, steps, 0)
  if prox is not None:
    prox = jnp.broadcast_to(jnp.asarray(prox, jnp.float32), sizes.shape)
  own_start = which is None
  into = starts if own_start and keep else into
  own_rows = starts if own_start and not keep else None
  own_part = None if correction is None else correction.own
  shared = None if correction is None else correction._replace(own=None)
  per_client = (cohort.ids, steps, into, arrived, prox, own_part, which, own_rows)

  def on_device(per_client, starts, data, key, sums, shared):
    ids, steps, into, *others = per_client

    def added(own: Params) -> Params | None:
      if shared is None:
        return None
      apart = jax.tree.map(jnp.subtract, shared.common, own)
      return jax.tree.map(lambda x: jnp.where(shared.applies, x, 0.0), apart)

    def chunk(slots, old, sums):
      arrived, prox, own_part, which, own_row = tree.take(others, slots)
      start = old[0] if keep else own_row
      if not own_start:
        start = tree.take(starts, which)
      empty = data.num_clients
      chunk_ids = jnp.asarray(ids).at[slots].get(mode='fill', fill_value=empty)
      chunk_steps = steps.at[slots].get(mode='fill', fill_value=0)
      params, loss, finite = train_chunk(
        local,
        data,
        start,
        chunk_ids,
        chunk_steps,
        client_keys(key, data, chunk_ids),
        prox,
        added(own_part),
      )
      chunk_sizes = data.sizes(chunk_ids)
      trained = Trained(params, loss, chunk_sizes, finite, arrived, chunk_steps)
      rows = None
      if fold is not None:
        sums, rows = fold(sums, trained, which, starts)
      kept = params if keep else None
      return (kept, trained._replace(params=None, rows=rows)), sums

    return sharding.map_chunks(
      chunk, steps, local.clients_per_chunk, sums, into=(into, None)
    )

  (params, trained), sums = sharding.per_device(on_device, local.mesh, 1)(
    per_client, None if own_start else starts, data, key, sums, shared
  )
  return trained._replace(params=params, sums=sums)


def cohort_losses(
  local: LocalTraining, models: Params, data: FederatedData, cohort: Cohort
) -> jax.Array:
  """Mean training loss of each model on each client, [S, K] float32.

  Args:
    local: see `LocalTraining`.
    models: [K, ...].
    data: training split.
    cohort: S clients. What is not a number counts as infinite, so that no client
      ever prefers it; an empty place gets 0.
  """
  width = min(EVALUATION_BATCH, data.max_examples)
  in_order = jnp.arange(data.max_examples, dtype=jnp.int32)
  num_models = jax.tree.leaves(models)[0].shape[0]
  batches = batching.batches_per_epoch(data.sizes(cohort.ids), width)

  def on_device(per_client, models, data):
    ids, batches = per_client

    def chunk(slots, _, __):
      chunk_ids = tree.take(ids, slots)
      chunk_batches = batches.at[slots].get(mode='fill', fill_value=0)
      sizes = data.sizes(chunk_ids)

      def batch_losses(client, size, step):
        rows, weights = batching.batch_rows(in_order, step, size, width)
        x, y = batching.gather(data, client, rows)
        mean = lambda p: weighted_cross_entropy(local.model, p, x, y, weights)
        count = weights.sum()
        return jnp.where(count > 0, jax.lax.map(mean, models) * count, 0.0)

      each = sharding.map_one_or_many(batch_losses, slots.shape[0])

      def body(step, total):
        return total + each(chunk_ids, sizes, jnp.broadcast_to(step, slots.shape))

      total = jnp.zeros((slots.shape[0], num_models))
      total = jax.lax.fori_loop(0, chunk_batches.max(), body, total)
      return total / jnp.maximum(sizes, 1)[:, None], None

    return sharding.map_chunks(chunk, batches, local.clients_per_chunk)

  losses, _ = sharding.per_device(on_device, local.mesh, 1)(
    (cohort.ids, batches), models, data
  )
  return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def cohort_gradients(
  local: LocalTraining,
  model: Params,
  data: FederatedData,
  cohort: Cohort,
  counts: jax.Array,
  keep: bool = True,
) -> tuple[Params, tree.ClusterSums]:
  """Gradient of each client's whole training loss at one model.

  Args:
    local: see `LocalTraining`.
    model: [1, ...].
    data: training split.
    cohort: S clients.
    counts: [S] bool, clients whose gradients are summed up.
    keep: whether to return every client's gradient too.

  Returns:
    Gradients [S, ...], 0 where they are not finite, or None; and the sum of those
    that count and are finite, about 0, of one cluster.
  """
  in_order = jnp.arange(data.max_examples, dtype=jnp.int32)

  def on_device(per_client, model, data):
    ids, counts = per_client
    zero = tree.zeros_like(model)

    def gradient(client, size):
      rows, weights = batching.batch_rows(
        in_order, jnp.int32(0), size, data.max_examples
      )
      x, y = batching.gather(data, client, rows)
      loss = lambda p: weighted_cross_entropy(local.model, p, x, y, weights)
      return jax.grad(loss)(tree.unstack(model, 0))

    def chunk(slots, _, sums):
      chunk_ids = tree.take(ids, slots)
      sizes = data.sizes(chunk_ids)
      each = sharding.map_one_or_many(gradient, slots.shape[0])
      rows = each(chunk_ids, sizes)
      finite = tree.all_finite(rows)
      rows = tree.where(finite, rows, tree.zeros_like(rows))
      counted = counts.at[slots].get(mode='fill', fill_value=False)
      weights = (finite & counted & (sizes > 0)).astype(jnp.float32)
      first = jnp.zeros(slots.shape, jnp.int32)
      sums = tree.add_rows(sums, rows, first, weights, zero)
      return rows if keep else None, sums

    sizes, none = data.sizes(ids), tree.no_sums(zero)
    return sharding.map_chunks(chunk, sizes, local.clients_per_chunk, none)

  per_client = jnp.asarray(cohort.ids), counts
  return sharding.per_device(on_device, local.mesh, 1)(per_client, model, data)
