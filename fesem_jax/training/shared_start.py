"""Local SGD from a shared start: dense kernels as what training changed in them.

All clients of a center begin a round with the same weights W_0. So a client keeps the
changes of a dense kernel (`kernel_change`) instead of a kernel of its own. The products
with W_0 are one product for all clients side by side, which reads W_0 once, or two
where they are of two centers; the kernel's gradient is never formed, and W_t once, when
training ends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core import sums, tree
from fesem_jax.core.sums import ClusterSums
from fesem_jax.core.types import Model, Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.training.kernel_change import (
  Block,
  Change,
  Kernel,
  Path,
  Rows,
  Start,
  add_moves,
  factors_of_moves,
  last_block_first,
  product,
)
from fesem_jax.training.penalty_step import kept_share

Loop = Any  # What a loop over local steps carries, a NamedTuple.


class SharedStart(NamedTuple):
  """The kernels that clients side by side start from together; none by default."""

  kernels: tuple[Kernel, ...] = ()
  starts: tuple[Start, ...] = ()  # of each kernel
  # [C] bool, clients that start from the second of two centers; None if all have one.
  from_other: jax.Array | None = None
  rate: jax.Array | float = 0.0  # [] float32 learning rate

  def no_changes(self, num_clients: int | None) -> tuple[Change, ...]:
    """What clients changed before their first step, [C, ...]; of one if None."""

    def empty(kernel: Kernel, start: Start) -> Change:
      count, (inputs, outputs) = kernel.rows * kernel.block, start.kernel.shape
      block = Block(
        jnp.zeros((count, inputs)), jnp.zeros((count, outputs)), jnp.zeros(count)
      )
      if num_clients is not None:
        block = tree.repeat(block, num_clients)
      return Change((block,) * -(-kernel.steps // kernel.block), self.from_other)

    return tuple(map(empty, self.kernels, self.starts))

  def no_rows(self) -> tuple[Rows, ...]:
    """Rows of the shapes of a step's."""

    def empty(kernel: Kernel, start: Start) -> Rows:
      inputs, outputs = start.kernel.shape
      return jnp.zeros((kernel.rows, inputs)), jnp.zeros((kernel.rows, outputs))

    return tuple(map(empty, self.kernels, self.starts))

  def model(
    self,
    model: Model,
    changes: tuple[Change, ...],
    step: jax.Array,
    rows: tuple[Rows, ...],
  ) -> Model:
    """The model with these kernels as they are after `changes`, before a step."""
    apply_with = model.apply_with
    if not self.kernels or apply_with is None:
      return model
    index = {kernel.path: i for i, kernel in enumerate(self.kernels)}

    def multiply(path: Path, x: jax.Array) -> jax.Array | None:
      if path not in index:
        return None
      i = index[path]
      flat = x.reshape(-1, x.shape[-1])
      full = step // self.kernels[i].block
      y = product(flat, self.starts[i], changes[i], full, rows[i])
      return y.reshape(*x.shape[:-1], -1)

    def apply(params: Params, x: jax.Array) -> jax.Array:
      return apply_with(params, x, multiply)

    return model._replace(apply=apply)

  def append(
    self,
    changes: tuple[Change, ...],
    rows: tuple[Rows, ...],
    step: jax.Array,
    active: jax.Array,
    rate: jax.Array | None = None,
    prox: jax.Array | None = None,
  ) -> tuple[Change, ...]:
    """`changes` after one more step of a client.

    `step` [] int32 is counted from 0; if `active` [] bool is False, nothing changes.
    `rate` [] float32 multiplies the learning rate; None is 1. `prox` [] float32 is
    lambda of the penalty lambda |W - W_0|^2, or None.
    """
    of_step = self.rate if rate is None else self.rate * rate

    def add(kernel: Kernel, change: Change, own: Rows) -> Change:
      kept = jnp.where(active, kept_share(of_step, prox), 1.0)
      first, *others = [b._replace(shares=b.shares * kept) for b in change.blocks]
      inputs, gradients = (jnp.where(active, x, 0.0) for x in own)
      new = inputs, gradients, jnp.full(kernel.rows, of_step)
      place = step % kernel.block * kernel.rows

      def put(whole: jax.Array, part: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(whole, part, place, 0)

      return change._replace(blocks=(Block(*map(put, first, new)), *others))

    return tuple(map(add, self.kernels, changes, rows))

  def over_steps(
    self, count: jax.Array, body: Callable[[jax.Array, Loop], Loop], loop: Loop
  ) -> Loop:
    """`jax.lax.fori_loop(0, count, body, loop)`, where `loop.changes` are changes."""
    if all(len(change.blocks) == 1 for change in loop.changes):
      return jax.lax.fori_loop(0, count, body, loop)
    every = self.kernels[0].block

    # Blocks change places between the loops over their steps: within one, they stay.
    def of_block(i: jax.Array, loop: Loop) -> Loop:
      empty_first = tuple(map(last_block_first, loop.changes))
      changes = jax.lax.cond(i > 0, lambda: empty_first, lambda: loop.changes)
      last = jnp.minimum((i + 1) * every, count)
      return jax.lax.fori_loop(i * every, last, body, loop._replace(changes=changes))

    return jax.lax.fori_loop(0, (count + every - 1) // every, of_block, loop)

  def finite(self, changes: tuple[Change, ...], others: jax.Array) -> jax.Array:
    """[C] bool: which clients' kernels are finite, by a bound on their entries.

    False too where a kernel comes close to what float32 can hold, and where `others`
    [C] bool says that the rest of the model is not finite. `changes` are [C, ...].
    """
    most = jnp.finfo(jnp.float32).max / 2
    for start, change in zip(self.starts, changes, strict=True):
      bound = start.largest()
      for block in change.blocks:
        inputs, gradients = (jnp.abs(x).max(axis=-1) for x in block[:2])
        bound += (jnp.abs(block.shares) * inputs * gradients).sum(axis=-1)
      others &= bound < most  # Not if one is not a number.
    return others

  def models(
    self, params: Params, changes: tuple[Change, ...], finite: jax.Array
  ) -> Params:
    """Whole local models, [C, ...].

    `params` [C, ...] are all but these kernels, and `changes` [C, ...] are of these.
    Where `finite` [C] bool is False, a client's kernels are left as they were at the
    start.
    """
    if not self.kernels:
      return params  # Any tree; those with kernels to share are dicts.
    flat = flatten_dict(params)
    for kernel, start, change in zip(self.kernels, self.starts, changes, strict=True):
      factors = factors_of_moves(change, finite)
      moved = jnp.einsum('cri,cro->cio', *factors, precision=kernel.precision)
      flat[*kernel.path, KERNEL] = start.of_clients(change.from_other) - moved
    return unflatten_dict(flat)

  def add_to(
    self,
    total: ClusterSums,
    params: Params,
    changes: tuple[Change, ...],
    finite: jax.Array,
    weights: jax.Array,
    choice: jax.Array,
    centers: Params,
  ) -> ClusterSums:
    """`sums.add_rows` of the local models to the sums of where they started.

    One product for each center, which forms none of the models. For `params`, `changes`
    and `finite`, see `models`. `weights` [C] float32 are 0 in empty places, `choice`
    [C] int32 is where each client started, and `centers` [K, ...] are whole models, the
    origins of the sums in `total`.
    """
    flat, origins = flatten_dict(total.params), flatten_dict(centers)
    paths = [(*kernel.path, KERNEL) for kernel in self.kernels]
    of_kernels = [flat.pop(path) for path in paths]
    rest = unflatten_dict({path: x for path, x in origins.items() if path in flat})
    added = sums.add_rows(
      total._replace(params=unflatten_dict(flat)), params, choice, weights, rest
    )
    flat = flatten_dict(added.params)
    parts = zip(self.kernels, of_kernels, self.starts, changes, strict=True)
    for path, part in zip(paths, parts, strict=True):
      flat[path] = add_moves(*part, finite, weights, choice)
    return added._replace(params=unflatten_dict(flat))


NONE = SharedStart()
