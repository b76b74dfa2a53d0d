"""Local SGD from a shared start: dense kernels as what training changed in them.

All clients of a center begin a round with the same W_0, see `kernel_change`. A penalty
lambda |W - W_0|^2 needs no W either: plain SGD of rate eta makes W_{t+1} - W_0 =
(1 - 2 eta lambda) (W_t - W_0) - eta g_t, where W_t - W_0 is a sum over earlier steps.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core import sums, tree
from fesem_jax.core.batching import SIDE
from fesem_jax.core.types import Model, Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.training.kernel_change import (
  Block,
  Kernel,
  KernelChange,
  KernelStart,
  Path,
  Rows,
  last_block_first,
  product,
)
from fesem_jax.training.local_sgd import frozen_and_learning, toward
from fesem_jax.training.one_client import (
  Client,
  LocalModel,
  all_finite,
  over_batches,
  together,
  where,
)
from fesem_jax.training.plain_sgd import variable_rate


class Moves(NamedTuple):
  """Change of a client's kernel in training: -inputs^T gradients."""

  inputs: jax.Array  # [R, I]
  gradients: jax.Array  # [R, O], times the shares of the steps


def changes_sgd(
  kernels: tuple[Kernel, ...],
  client: Client,
  penalty: jax.Array | float | None = None,
  layers: Sequence[str] | None = None,
  factors: jax.Array | None = None,
) -> LocalModel:
  """Trains a client as `local_sgd`, but for the rounding, with changes to `kernels`."""
  local, shared = client.local, flatten_dict(client.models.shared)
  starts, from_other = _starts(client, [shared[*k.path, KERNEL] for k in kernels])
  whole, frozen = client.start, None
  if layers is not None:
    frozen, whole = frozen_and_learning(whole, layers)
  flat = flatten_dict(whole)
  for kernel in kernels:
    del flat[*kernel.path, KERNEL]
  whole = unflatten_dict(flat)
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  rate = variable_rate(local.optimizer, params)

  def all_of(params):
    return params if frozen is None else tree.merge(frozen, params)

  def step(t, carry, batch):
    params, state, changes = carry

    def loss_of(params, rows):
      model = _with_changes(batch.model, kernels, starts, changes, t, rows)
      return batch.loss(all_of(params), model)

    loss_and_grads = jax.value_and_grad(loss_of, argnums=(0, 1))
    with jax.default_matmul_precision(local.precision):
      loss, (grads, rows) = loss_and_grads(params, _no_rows(kernels, starts))
    grads, rows = together((grads, rows))
    factor = local.rate_of_step(t, client.rate)
    step_rate = rate if factor is None else rate * factor
    changes = tuple(
      _appended(kernel, change, row, t, batch.active, step_rate, penalty)
      for kernel, change, row in zip(kernels, changes, rows, strict=True)
    )
    if penalty is not None:
      grads, _ = toward(whole, penalty).update(grads, optax.EmptyState(), params)
    new = client.descend(t, grads, state, params)
    return (*where(batch.active, new, (params, state)), changes), loss

  changes = tuple(map(_no_change, kernels, starts))
  if from_other is not None:
    changes = tuple(change._replace(from_other=from_other) for change in changes)
  carry = whole, client.optimizer_state(whole), changes
  over_steps = functools.partial(_over_steps, kernels[0].block)
  (last, _, changes), loss = over_batches(client, carry, step, factors, over_steps)
  finite = all_finite(last) & _bounded(starts, changes)
  params = where(finite, last, whole)
  compact = flatten_dict(all_of(params))
  for kernel, change in zip(kernels, changes, strict=True):
    compact[*kernel.path, KERNEL] = _moves(change, finite)

  def form(compact):
    return whole_models(
      compact, client.models.shared, client.models.choice, local.precision
    )

  return LocalModel(unflatten_dict(compact), loss, finite, client.steps, form)


def _starts(
  client: Client, kernels: Sequence[jax.Array]
) -> tuple[list[KernelStart], jax.Array | None]:
  """Starts of clients side by side, of two at most, and whether one has the second."""
  choice, count = client.models.choice, kernels[0].shape[0]
  if choice is None or count == 1:
    return [KernelStart(x[0]) for x in kernels], None
  if jax.lax.axis_size(SIDE) == 1:
    return [KernelStart(x[choice]) for x in kernels], None
  exists = client.id < client.data.num_clients  # Of an empty place, no choice counts.
  first = jax.lax.pmin(jnp.where(exists, choice, count - 1), SIDE)
  second_choice = jax.lax.pmax(jnp.where(exists, choice, first), SIDE)
  two, from_other = first != second_choice, exists & (choice != first)
  return [KernelStart(x[first], x[second_choice], two) for x in kernels], from_other


def _no_change(kernel: Kernel, start: KernelStart) -> KernelChange:
  count, (inputs, outputs) = kernel.rows * kernel.block, start.kernel.shape
  block = Block(
    jnp.zeros((count, inputs)), jnp.zeros((count, outputs)), jnp.zeros(count)
  )
  return KernelChange((block,) * -(-kernel.steps // kernel.block))


def _no_rows(
  kernels: Sequence[Kernel], starts: Sequence[KernelStart]
) -> tuple[Rows, ...]:
  def empty(kernel: Kernel, start: KernelStart) -> Rows:
    inputs, outputs = start.kernel.shape
    return jnp.zeros((kernel.rows, inputs)), jnp.zeros((kernel.rows, outputs))

  return tuple(map(empty, kernels, starts))


def _with_changes(
  model: Model,
  kernels: Sequence[Kernel],
  starts: Sequence[KernelStart],
  changes: Sequence[KernelChange],
  t: jax.Array,
  rows: tuple[Rows, ...],
) -> Model:
  """The model with kernels as they are after `changes`, before step `t`."""
  index, apply_with = {k.path: i for i, k in enumerate(kernels)}, model.apply_with
  assert apply_with is not None

  def multiply(path: Path, x: jax.Array) -> jax.Array | None:
    if path not in index:
      return None
    i = index[path]
    flat, full = x.reshape(-1, x.shape[-1]), t // kernels[i].block
    y = product(flat, starts[i], changes[i], full, rows[i])
    return y.reshape(*x.shape[:-1], -1)

  return model._replace(apply=lambda params, x: apply_with(params, x, multiply))


def _appended(
  kernel: Kernel,
  change: KernelChange,
  rows: Rows,
  t: jax.Array,
  active: jax.Array,
  rate: jax.Array | float,
  penalty: jax.Array | float | None,
) -> KernelChange:
  """The change after step `t` [], whose update is `rate` [] times the gradient."""
  share = 1.0 if penalty is None else 1 - 2 * rate * penalty  # Of W - W_0.
  factor = jnp.where(active, share, 1.0)
  first, *rest = [b._replace(shares=b.shares * factor) for b in change.blocks]
  inputs, gradients = (jnp.where(active, x, 0.0) for x in rows)
  new = inputs, gradients, jnp.full(kernel.rows, rate)
  place = t % kernel.block * kernel.rows

  def put(whole: jax.Array, part: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, part, place, 0)

  return change._replace(blocks=(Block(*map(put, first, new)), *rest))


def _over_steps(every: int, first: int, count: jax.Array, body: Any, loop: Any) -> Any:
  """`jax.lax.fori_loop`, in blocks of `every` steps; the carry has the changes last."""
  (*_, changes), *_ = loop
  if all(len(change.blocks) == 1 for change in changes):
    return jax.lax.fori_loop(first, count, body, loop)

  # Blocks change places between the loops over their steps: within one, they stay.
  def run_block(i: jax.Array, loop: Any) -> Any:
    (*carry, changes), *rest = loop
    empty_first = tuple(map(last_block_first, changes))
    changes = jax.lax.cond(i > 0, lambda: empty_first, lambda: changes)
    last = jnp.minimum((i + 1) * every, count)
    loop = (*carry, changes), *rest
    return jax.lax.fori_loop(i * every, last, body, loop)

  return jax.lax.fori_loop(first, (count + every - 1) // every, run_block, loop)


def _bounded(
  starts: Sequence[KernelStart], changes: Sequence[KernelChange]
) -> jax.Array:
  """[] bool: whether kernels are finite, by a bound on their entries."""
  most, bounded = jnp.finfo(jnp.float32).max / 2, jnp.bool_(True)
  for start, change in zip(starts, changes, strict=True):
    bound = start.largest()
    for block in change.blocks:
      inputs, gradients = (jnp.abs(x).max(axis=-1) for x in block[:2])
      bound += (jnp.abs(block.shares) * inputs * gradients).sum(axis=-1)
    bounded &= bound < most  # Not if one is not a number.
  return bounded


def _moves(change: KernelChange, finite: jax.Array) -> Moves:
  blocks = where(finite, change.blocks, tree.zeros_like(change.blocks))
  inputs, gradients, shares = (
    parts[0] if len(parts) == 1 else jnp.concatenate(parts)
    for parts in zip(*blocks, strict=True)
  )
  return Moves(inputs, gradients * shares[:, None])


def whole_models(
  compact: Params, shared: Params, choice: jax.Array | None, precision: str
) -> Params:
  """Models whose kernels are formed from the `Moves` in `compact`, if there are any."""
  if not any(isinstance(x, Moves) for x in jax.tree.leaves(compact, is_leaf=_is_moves)):
    return compact  # Any tree; those with kernels to share are dicts.
  flat, starts = flatten_dict(compact), flatten_dict(shared)
  for path, x in flat.items():
    if isinstance(x, Moves):
      moved = jnp.einsum('...ri,...ro->...io', *x, precision=precision)
      start = starts[path][0]
      if choice is not None:
        starting_kernels = tree.rows_of_few(starts[path], choice.reshape(-1))
        start = starting_kernels.reshape(*choice.shape, *start.shape)
      flat[path] = jnp.broadcast_to(start, moved.shape) - moved
  return unflatten_dict(flat)


def add_to_one(
  total: sums.ClusterSums,
  compact: Params,
  weights: jax.Array,
  origin: Params,
  precision: str,
) -> sums.ClusterSums:
  """`sums.add_to_one` of models that start from `origin` [1, ...], by their `Moves`."""
  flat, before = flatten_dict(compact), flatten_dict(total.params)
  moves = {path: flat.pop(path) for path, x in list(flat.items()) if _is_moves(x)}
  rest = [{p: tree[p] for p in flat} for tree in (before, flatten_dict(origin))]
  added = sums.add_to_one(total._replace(params=rest[0]), flat, weights, rest[1])
  for path, (inputs, gradients) in moves.items():
    weighted = gradients * weights[:, None, None]
    moved = jnp.einsum('cri,cro->io', inputs, weighted, precision=precision)
    added.params[path] = before[path] - moved[None]
  return added._replace(params=unflatten_dict(added.params))


def _is_moves(x: Any) -> bool:
  return isinstance(x, Moves)
