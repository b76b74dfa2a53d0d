"""Local SGD: the one loop that every method trains with (Algorithm 2)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import batching, local_optimizers, tree
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.models import dense_layers
from fesem_jax.training.batch_losses import (
  OwnStep,
  augmented,
  counted,
  descend,
  gradient_of,
  if_active,
  in_training,
  weighted_loss,
)
from fesem_jax.training.kernel_change import Change, Rows
from fesem_jax.training.penalty_step import with_pull
from fesem_jax.training.shared_start import NONE, SharedStart

# (step [] int32, params, the client's correction) -> the correction at this step.
Vary = Callable[[jax.Array, Params, Params], Params]


class Learner(NamedTuple):
  """What a local step of one client changes."""

  params: Params  # one model, or the layers of it that learn
  opt_state: optax.OptState  # of the local optimizer, or what an `OwnStep` remembers
  changes: tuple[Change, ...]  # of the kernels that the client shares the start of


class Fixed(NamedTuple):
  """What stays during the local steps of one client; None where there is none."""

  frozen: Params  # the layers that do not learn
  anchor: Params  # like `Learner.params`, what `prox` pulls to
  prox: jax.Array | None  # [] float32
  correction: Params  # like `Learner.params`, added to every gradient
  key: jax.Array  # of the client in this round


def local_step(
  local: LocalTraining,
  shared: SharedStart,
  step: jax.Array,
  rate: jax.Array | None,
  fixed: Fixed,
  learner: Learner,
  batch: batching.Batch,
  active: jax.Array,
) -> tuple[Learner, jax.Array, jax.Array]:
  """One step of one client on its loss + prox |w - anchor|^2 + <correction, w>.

  The optimizer gets the gradient of all of it, so that its weight decay, clipping and
  moments see the penalty and the correction too.

  `step` [] int32 is counted from 0, `rate` [] float32 multiplies the update (None is
  1), and `batch` is a `batching.Batch` of one client, without the axis C. If `active`
  [] bool is False, nothing changes.

  Returns the learner, and the sum [] of the losses and the number [] of the batch's
  examples, both 0 unless active.
  """
  x, y, weights, factors = batch
  params, opt_state, changes = learner
  frozen, anchor, prox, correction, key = fixed
  x = augmented(local, key, step, x)
  model_in_training = in_training(local.model, key, step)

  def loss_of(params: Params, rows: tuple[Rows, ...]) -> jax.Array:
    whole = params if frozen is None else frozen | params
    model = shared.model(model_in_training, changes, step, rows)
    return weighted_loss(model, whole, x, y, weights, factors)

  both = jax.value_and_grad(loss_of, argnums=(0, 1))
  with jax.default_matmul_precision(local.precision):
    loss, (grads, rows) = both(params, shared.no_rows())
  # Large gradients before any update: the update can then overwrite the params.
  grads, rows = _together((grads, rows))
  changes = shared.append(changes, rows, step, active, rate, prox)
  grads = with_pull(grads, params, anchor, prox)
  if correction is not None:
    grads = jax.tree.map(jnp.add, grads, correction)
  new = descend(local, grads, opt_state, params, rate)
  params, opt_state = if_active(active, new, (params, opt_state))
  return Learner(params, opt_state, changes), *counted(active, loss, batch)


def _together(grads: Any) -> Any:
  """The same gradients, but no large one is ready before all large ones are."""
  leaves, form = jax.tree.flatten(grads)
  large = [g.size > dense_layers.SMALL for g in leaves]
  # An element by its index: `ravel` would copy the whole gradient on a TPU.
  zeros = (0 * g[(0,) * g.ndim] for g, wait in zip(leaves, large, strict=True) if wait)
  # One that is not finite must not spoil the other layers: optimizers may mend it.
  tie = sum(jnp.where(jnp.isnan(zero), 0.0, zero) for zero in zeros)
  leaves = [g + tie if wait else g for g, wait in zip(leaves, large, strict=True)]
  return jax.tree.unflatten(form, leaves)


class _Loop(NamedTuple):
  """What the loop over local steps of a chunk carries."""

  params: Params  # [C, ...]
  opt_state: optax.OptState  # [C, ...]
  changes: tuple[Change, ...]  # [C, ...]
  orders: jax.Array  # [C, N_max] int32 this epoch's order of examples
  loss: jax.Array  # [C] float32 sum over visited examples
  visited: jax.Array  # [C] float32


class Ends(NamedTuple):
  """Where local training of C clients ended."""

  # [C, ...] local models, without the kernels that they shared the start of.
  params: Params
  changes: tuple[Change, ...]  # [C, ...] of those kernels; see `SharedStart.models`
  loss: jax.Array  # [C] float32, see `Trained`
  finite: jax.Array  # [C] bool, see `Trained`


class Work(NamedTuple):
  """Which clients of a chunk train, and how much."""

  ids: jax.Array  # [C] int32 positions in the data
  steps: jax.Array  # [C] int32 local steps
  keys: jax.Array  # [C] keys of the clients in this round


class Terms(NamedTuple):
  """What clients of a chunk minimize beside their loss; see `Objective`."""

  anchor: Params = None  # [C, ...] what `prox` pulls to; None is the start
  # [C] float32, adds `prox * |w - anchor|^2` to the loss (Eq. 7), or None.
  prox: jax.Array | None = None
  correction: Params = None  # [C, ...] added to every gradient, or None
  # Gives the correction of each step, counted from 0; None leaves it as it is.
  vary: Vary | None = None
  # Names of the layers that learn; None is all. The others stay as they are.
  layers: Sequence[str] | None = None
  # [C, N_max] float32 of the losses of their examples; None if all are 1.
  factors: jax.Array | None = None
  # What clients do with a batch; None is `local_step`. It minimizes no other term.
  own: OwnStep | None = None


_LOSS_ALONE = Terms()


def train_chunk(
  local: LocalTraining,
  data: FederatedData,
  starts: Params,
  work: Work,
  *,
  shared: SharedStart = NONE,
  terms: Terms = _LOSS_ALONE,
  rate: jax.Array | None = None,
) -> Ends:
  """Trains C clients side by side for as long as the longest of them takes.

  `starts` [C, ...] is where each client starts, without the kernels in `shared`, which
  are those of one center or two; if there are any, `terms` must be without anchor and
  correction. For `rate` [] float32, see `LocalTraining.rate`.
  """
  ids, steps, keys = work
  anchor, prox, correction, vary, layers, factors, own = terms
  one = ids.shape[0] == 1
  if one:
    # Without a client axis convolutions are not grouped ones, and the loop can
    # overwrite the params in place.
    ids, steps, keys, starts, anchor, prox, correction, factors = tree.unstack(
      (ids, steps, keys, starts, anchor, prox, correction, factors), 0
    )

  def each(fn: Any, in_axes: Any = 0) -> Any:
    return fn if one else jax.vmap(fn, in_axes, axis_size=ids.shape[0])

  frozen = None
  if layers is not None:
    frozen = {name: x for name, x in starts.items() if name not in layers}

  def learning(params: Params) -> Params:
    if layers is None:
      return params
    # A layer may be nothing but a kernel whose start is shared.
    return {name: params[name] for name in layers if name in params}

  if prox is not None:
    anchor = learning(starts if anchor is None else anchor)
  if correction is not None:
    correction = learning(correction)
  fixed = Fixed(frozen, anchor, prox, correction, keys)
  in_order, batch_at = batching.step_by_step(
    local.schedule, data, ids, keys, each, factors
  )

  def body(step: jax.Array, loop: _Loop) -> _Loop:
    orders, batch = batch_at(step, loop.orders)
    of_step = local.rate_of_step(step, rate)

    def one_step(fixed, learner, batch, active):
      if own is not None:
        params, memory, _ = learner
        gradient = gradient_of(local, fixed.key, step, batch)
        *new, loss = own.take(params, memory, gradient, step, of_step)
        params, memory = if_active(active, tuple(new), (params, memory))
        return Learner(params, memory, ()), *counted(active, loss, batch)
      if vary is not None:
        varied = vary(step, learner.params, fixed.correction)
        fixed = fixed._replace(correction=varied)
      return local_step(local, shared, step, of_step, fixed, learner, batch, active)

    learner = Learner(loop.params, loop.opt_state, loop.changes)
    learner, loss, count = each(one_step)(fixed, learner, batch, step < steps)
    loss, visited = loop.loss + loss, loop.visited + count
    params, opt_state, changes = learner
    return _Loop(params, opt_state, changes, orders, loss, visited)

  def remembered(params: Params, key: jax.Array) -> Any:
    return local_optimizers.with_keys((own or local.optimizer).init(params), key)

  first = _Loop(
    params=learning(starts),
    opt_state=each(remembered)(learning(starts), keys),
    changes=shared.no_changes(None if one else ids.shape[0]),
    orders=in_order,
    loss=jnp.zeros(ids.shape),
    visited=jnp.zeros(ids.shape),
  )
  last = shared.over_steps(steps.max(), body, first)
  loss = last.loss / jnp.maximum(last.visited, 1.0)
  params, changes = last.params, last.changes
  params = params if frozen is None else frozen | params
  if one:
    params, starts, changes, loss = tree.expand((params, starts, changes, loss))
  finite = shared.finite(changes, tree.all_finite(params))
  if own is not None:  # What it remembers may be spoiled before its parameters are.
    finite &= jnp.isfinite(loss)
  return Ends(tree.where(finite, params, starts), changes, loss, finite)
