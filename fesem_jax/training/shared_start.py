"""Local SGD from a shared start: dense kernels as what training changed in them.

All clients of a center begin a round with the same weights W_0. Of a dense layer with
inputs x_s [B, I] and gradients d_s [B, O] of its outputs at step s, SGD makes

  W_t = W_0 - sum_{s < t} c_s x_s^T d_s,

where c_s is the learning rate, which a penalty shrinks at each later step
(`penalty_step`). So a client keeps the rows x_s and d_s instead of a kernel of its own:

  x W_t = x W_0 - ((x X^T) * c) D    and    d W_t^T = d W_0^T - ((d D^T) * c) X.

The products with W_0 are one product for all clients side by side, which reads W_0
once, or two where they are of two centers; the kernel's gradient is never formed, and
W_t once, when training ends.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core import sums, tree
from fesem_jax.core.sums import ClusterSums
from fesem_jax.core.types import Model, Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.training.penalty_step import kept_share

Loop = Any  # What a loop over local steps carries, a NamedTuple.
# A dense layer: its keys in the tree of parameters.
Path = tuple[str, ...]
# A step's inputs [B, I] and output gradients [B, O].
Rows = tuple[jax.Array, jax.Array]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Kernel:
  """A dense layer whose kernel clients of a center start from.

  Attributes:
    path: of the layer.
    rows: of one step, R.
    steps: the most that a client takes, T.
    block: steps whose rows are one block, b; the same for all kernels.
    precision: of the products that stand for its gradient; see `LocalTraining`.
  """

  path: Path
  rows: int
  steps: int
  block: int
  precision: str = 'highest'


class Block(NamedTuple):
  """What some local steps changed in a kernel: -(shares * inputs)^T gradients.

  Attributes:
    inputs: [b R, I] float32 the layer's inputs, R rows for each of b steps.
    gradients: [b R, O] float32 gradients of the layer's outputs.
    shares: [b R] float32 c; 0 in rows that are not filled yet.
  """

  inputs: jax.Array
  gradients: jax.Array
  shares: jax.Array


class Change(NamedTuple):
  """What training changed in a kernel so far.

  Attributes:
    blocks: the one that is being filled, those that are full, and last those that are
      empty yet.
    from_other: [] bool whether the client started from the second of two centers;
      None if all have one.
  """

  blocks: tuple[Block, ...]
  from_other: jax.Array | None = None


class Start(NamedTuple):
  """What clients side by side start a kernel from.

  Attributes:
    kernel: [I, O] W_0.
    other: [I, O] W_0 of the clients that are `from_other`; None if all have one center.
    two: [] bool whether there are any of these.
  """

  kernel: jax.Array
  other: jax.Array | None = None
  two: jax.Array | None = None

  def times(
    self, x: jax.Array, from_other: jax.Array | None, turned: bool = False
  ) -> jax.Array:
    """The product x W_0, or x W_0^T if `turned`; two where there are two centers.

    Args:
      x: [R, I], or [R, O].
      from_other: see `Change`.
      turned: which.
    """

    def by(kernel: jax.Array, x: jax.Array) -> jax.Array:
      return x @ (kernel.T if turned else kernel)

    if self.other is None or self.two is None or from_other is None:
      return by(self.kernel, x)
    other = self.other

    def by_both(x: jax.Array) -> jax.Array:
      mine = by(self.kernel, jnp.where(from_other, 0.0, x))
      return mine + by(other, jnp.where(from_other, x, 0.0))

    return jax.lax.cond(self.two, by_both, lambda x: by(self.kernel, x), x)

  def of_clients(self, from_other: jax.Array | None) -> jax.Array:
    """W_0 of each client [C, I, O], or [1, I, O] of all; `from_other` is [C]."""
    if self.other is None or from_other is None:
      return self.kernel[None]
    return jnp.where(from_other[:, None, None], self.other[None], self.kernel[None])

  def largest(self) -> jax.Array:
    """[] the largest absolute entry."""
    largest = jnp.abs(self.kernel).max()
    if self.other is None:
      return largest
    return jnp.maximum(largest, jnp.abs(self.other).max())


@jax.custom_vjp
def product(
  x: jax.Array, start: Start, change: Change, full: jax.Array, rows: Rows
) -> jax.Array:
  """The product x W_t; its gradient by `rows` is what this step adds to `change`.

  Args:
    x: [R, I].
    start: of the kernel.
    change: of the kernel so far.
    full: [] int32 how many blocks are.
    rows: anything of the shapes of a step's rows.

  Returns:
    [R, O] float32.
  """
  del rows
  own = _of_blocks(x, change, full, lambda block: block)
  return start.times(x, change.from_other) - own


def _of_blocks(x, change, full, sides):
  """((x A^T) * shares) B, added up over the blocks, whose `sides` give A and B."""

  def times(block, x):
    a, b, shares = sides(block)
    return ((x @ a.T) * shares[None]) @ b

  first, *others = change.blocks
  total = times(first, x)
  for i, block in enumerate(others, 1):
    none = jnp.zeros_like(total)
    total += jax.lax.cond(i <= full, times, lambda *_, none=none: none, block, x)
  return total


def _forward(x, start, change, full, rows):
  return product(x, start, change, full, rows), (x, start, change, full)


def _backward(residuals, dy):
  x, start, change, full = residuals
  own = _of_blocks(dy, change, full, lambda b: (b.gradients, b.inputs, b.shares))
  dx = start.times(dy, change.from_other, turned=True) - own
  return dx, None, None, None, (x, dy)


product.defvjp(_forward, _backward)


class SharedStart(NamedTuple):
  """The kernels that clients side by side start from together; none by default.

  Attributes:
    kernels: what they are.
    starts: of each.
    from_other: [C] bool, the clients that start from the second of two centers; None
      if all have one.
    rate: [] float32 learning rate.
  """

  kernels: tuple[Kernel, ...] = ()
  starts: tuple[Start, ...] = ()
  from_other: jax.Array | None = None
  rate: jax.Array | float = 0.0

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

    Args:
      changes: so far.
      rows: of the step.
      step: [] int32 number of the step, counted from 0.
      active: [] bool; False changes nothing.
      rate: [] float32 multiplies the learning rate; None is 1.
      prox: [] float32 lambda of the penalty lambda |W - W_0|^2, or None.
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
      empty_first = tuple(map(_turned, loop.changes))
      changes = jax.lax.cond(i > 0, lambda: empty_first, lambda: loop.changes)
      last = jnp.minimum((i + 1) * every, count)
      return jax.lax.fori_loop(i * every, last, body, loop._replace(changes=changes))

    return jax.lax.fori_loop(0, (count + every - 1) // every, of_block, loop)

  def finite(self, changes: tuple[Change, ...], others: jax.Array) -> jax.Array:
    """Which clients' kernels are finite, by a bound on their entries.

    Args:
      changes: [C, ...].
      others: [C] bool, whether the rest of each model is finite.

    Returns:
      [C] bool. False too where a kernel comes close to what float32 can hold.
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

    Args:
      params: [C, ...] all but these kernels.
      changes: [C, ...] of these kernels.
      finite: [C] bool; False leaves a client's kernels as they were at the start.
    """
    if not self.kernels:
      return params  # Any tree; those with kernels to share are dicts.
    flat = flatten_dict(params)
    for kernel, start, change in zip(self.kernels, self.starts, changes, strict=True):
      factors = _factors(change, finite)
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

    One product for each center, which forms none of the models.

    Args:
      total: of all centers.
      params: see `models`.
      changes: see `models`.
      finite: see `models`.
      weights: [C] float32; 0 in empty places.
      choice: [C] int32 where each started.
      centers: [K, ...] whole models, the origins of the sums.
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
      flat[path] = _add_moves(*part, finite, weights, choice)
    return added._replace(params=unflatten_dict(flat))


def _factors(change: Change, finite: jax.Array) -> Rows:
  """What a kernel [C, I, O] lost: inputs [C, R, I] and gradients [C, R, O]."""
  blocks = tree.where(finite, change.blocks, tree.zeros_like(change.blocks))
  inputs, gradients, shares = (
    parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
    for parts in zip(*blocks, strict=True)
  )
  return inputs, gradients * shares[..., None]


def _add_moves(
  kernel: Kernel,
  sum_of: jax.Array,
  start: Start,
  change: Change,
  finite: jax.Array,
  weights: jax.Array,
  choice: jax.Array,
) -> jax.Array:
  """The sums [K, I, O] of a kernel's moves with those of C clients."""
  inputs, gradients = _factors(change, finite)

  def add(sum_of: jax.Array, center: jax.Array, weights: jax.Array) -> jax.Array:
    weighted = gradients * weights[:, None, None]
    moved = jnp.einsum('cri,cro->io', inputs, weighted, precision=kernel.precision)
    if sum_of.shape[0] == 1:
      return sum_of - moved[None]
    own = jax.lax.dynamic_index_in_dim(sum_of, center, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(sum_of, own - moved, center, 0)

  from_other = change.from_other
  if from_other is None:
    return add(sum_of, choice[0], weights)
  sum_of = add(sum_of, choice[0], jnp.where(from_other, 0.0, weights))

  def add_other(sum_of: jax.Array) -> jax.Array:
    return add(sum_of, choice[from_other.argmax()], jnp.where(from_other, weights, 0.0))

  return jax.lax.cond(start.two, add_other, lambda sum_of: sum_of, sum_of)


def _turned(change: Change) -> Change:
  """The change with its last block first."""
  *others, last = change.blocks
  return change._replace(blocks=(last, *others))


NONE = SharedStart()
