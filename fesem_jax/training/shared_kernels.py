"""Chooses kernels for `shared_start`, and clients per chunk, by shapes alone."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from fesem_jax.core import sharding
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import batch_width, most_steps
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.parameter_names import is_named
from fesem_jax.core.types import Params
from fesem_jax.models.dense_layers import KERNEL
from fesem_jax.training.kernel_change import Kernel, Path
from fesem_jax.training.plain_sgd import is_plain_sgd

# `auto` keeps the rows of a kernel of at least so many entries, ...
_LARGE = 2**18
# ... unless they outgrow this share of it: products with rows run slower than those
# with kernels.
_ROWS_PER_KERNEL = 0.5

# On a CPU so many clients train side by side, or fewer: their rows, in numbers, are to
# stay in the cache.
_SIDE_BY_SIDE = 8
_CACHED = 2**25
# Time of a client's step, over that with many others of its center side by side: what
# one alone takes more, one beside clients of another center, and what one with kernels
# of its own takes.
_ALONE_MORE = 1.0
_TWO_MORE = 0.2
_OWN = 1.5

# An accelerator is not filled by fewer clients of a center side by side than this.
_FEW = 8

# Rows of a block, about: only as much of the rows is read as is filled.
_BLOCK = 128


def choose(
  local: LocalTraining,
  start: ClientModels,
  data: FederatedData,
  num_clients: int,
  layers: Sequence[str] | None = None,
) -> tuple[tuple[Kernel, ...], int]:
  """The kernels to keep as changes, and how many clients go side by side."""
  layer_kernels = kernels(local, start, data, layers)
  if not layer_kernels:
    return (), local.clients_per_chunk
  count = side_by_side(local, layer_kernels, start.shared, num_clients)
  if local.shared_start == 'on' or local.clients_per_shared_start:
    return layer_kernels, count
  num_local = -(-num_clients // sharding.divisor(local.mesh))
  if local.mesh.devices.flat[0].platform != 'cpu':
    # Whatever fits into its memory: changes need less of it than kernels.
    fits = 2 * _clients_per_center(num_local, start.shared) >= min(_FEW, num_local)
  else:
    fits = _time(count, start.shared, num_local) <= _OWN
  if fits:
    return layer_kernels, count
  # With few clients of each center, too many places would be empty.
  return (), local.clients_per_chunk


def _time(count: int, weights: Params, num_local: int) -> float:
  """Time of a client's step with `count` places side by side; see `_OWN`."""
  centers = jax.tree.leaves(weights)[0].shape[0]
  if centers == 1 or count == 1:
    return 1 + _ALONE_MORE / count
  # Of all chunks, those that have clients of two centers.
  share_of_two = min(1.0, (centers - 1) * count / num_local)
  # A third center leaves half a chunk empty, about, and the last client some places.
  third = (centers - 1) // 2 * (count - 1) / 2 if count * centers > num_local else 0.0
  places = math.ceil((num_local + third) / count) * count
  extra = _ALONE_MORE / count * (1 + share_of_two) + _TWO_MORE * share_of_two
  return (1 + extra) * places / num_local


def side_by_side(
  local: LocalTraining, kernels: tuple[Kernel, ...], weights: Params, num_clients: int
) -> int:
  """How many clients of a center or two to train side by side on a device, C."""
  if local.clients_per_shared_start:
    return local.clients_per_shared_start
  flat = flatten_dict(weights)
  shapes = [flat[*kernel.path, KERNEL].shape[1:] for kernel in kernels]
  numbers = sum(k.rows * k.steps * sum(s) for k, s in zip(kernels, shapes, strict=True))
  num_local = -(-num_clients // sharding.divisor(local.mesh))
  device = local.mesh.devices.flat[0]
  if device.platform == 'cpu':
    most = max(1, min(num_local, _SIDE_BY_SIDE, _CACHED // numbers))
    return min(range(1, most + 1), key=lambda c: _time(c, weights, num_local))
  # Beside the rows: all other weights as in `default_clients_per_chunk`.
  other_params = sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(weights))
  other_params -= sum(math.prod(shape) for shape in shapes)
  patches = 120 * 2**20 if any(x.ndim == 5 for x in jax.tree.leaves(weights)) else 0
  client_bytes = 8 * numbers + 24 * other_params + patches
  most = sharding.memory_for_clients(device) // client_bytes
  # As many places as a center has clients, about; of more than two have, some would be
  # empty.
  per_center = _clients_per_center(num_local, weights)
  return max(1, min(max(per_center, _FEW), 2 * per_center, num_local, most))


def _clients_per_center(num_local: int, weights: Params) -> int:
  """The mean number of clients of a center on a device, rounded up."""
  return -(-num_local // jax.tree.leaves(weights)[0].shape[0])


def kernels(
  local: LocalTraining,
  start: ClientModels,
  data: FederatedData,
  layers: Sequence[str] | None = None,
) -> tuple[Kernel, ...]:
  """The dense layers that clients may keep as changes; 'auto': large ones alone."""
  model, mode, apply_with = local.model, local.shared_start, local.model.apply_with
  if mode == 'off' or apply_with is None or start.shared is None:
    return ()
  if model.apply_train is not None:  # Its random layers lie outside `apply_with`.
    return ()
  sizes = [math.prod(x.shape[1:]) for x in jax.tree.leaves(start.shared)]
  if start.mixture is not None or (mode == 'auto' and max(sizes, default=0) < _LARGE):
    return ()
  params = jax.eval_shape(model.init, jax.random.key(0))
  if not is_plain_sgd(local):
    return ()
  width = batch_width(local.schedule, data.max_examples)
  steps = most_steps(local.schedule, data.max_examples)
  batch = jax.ShapeDtypeStruct((width, *data.example_shape), jnp.float32)
  selected, shared = [], flatten_dict(start.shared)
  learn = {p for p in flatten_dict(params) if layers is None or is_named(p, layers)}
  for path, x in _products(apply_with, params, batch).items():
    kernel = shared.get((*path, KERNEL))
    if kernel is None or (*path, KERNEL) not in learn:
      continue
    rows, (size_in, size_out) = x.size // x.shape[-1], kernel.shape[1:]
    size, row_products = size_in * size_out, steps * rows * (size_in + size_out)
    if mode == 'on' or (size >= _LARGE and row_products <= _ROWS_PER_KERNEL * size):
      selected.append(Kernel(path, rows, steps, steps))
  if selected and len(selected) == len(learn):  # Something is trained beside changes.
    selected.pop()
  blocks = -(-steps * max((k.rows for k in selected), default=1) // _BLOCK)
  return tuple(
    dataclasses.replace(kernel, block=-(-steps // blocks)) for kernel in selected
  )


def _products(
  apply_with: Callable[..., jax.Array], params: Params, batch: jax.ShapeDtypeStruct
) -> dict[Path, jax.ShapeDtypeStruct]:
  """The inputs [..., I] of dense layers whose kernel [I, O] one product alone reads."""
  kernels = {
    path[:-1]: x
    for path, x in flatten_dict(params).items()
    if path[-1] == KERNEL
    and isinstance(x, jax.ShapeDtypeStruct)  # Not boxed, as by `nn.with_partitioning`.
    and len(x.shape) == 2
    and x.dtype == jnp.float32
  }
  inputs: dict[Path, list[jax.ShapeDtypeStruct]] = {}

  def multiply(path: Path, x: jax.Array) -> jax.Array | None:
    inputs.setdefault(path, []).append(jax.ShapeDtypeStruct(x.shape, x.dtype))
    if path not in kernels or x.dtype != jnp.float32:
      return None
    return jnp.zeros((*x.shape[:-1], kernels[path].shape[1]))

  traced = jax.make_jaxpr(lambda p, x: apply_with(p, x, multiply))(params, batch).jaxpr
  read = {id(x) for equation in traced.eqns for x in equation.invars}
  leaves, form = jax.tree.flatten(params)
  names = flatten_dict(jax.tree.unflatten(form, traced.invars[: len(leaves)]))
  unread = {path[:-1] for path, name in names.items() if id(name) not in read}
  return {
    path: path_inputs[0]
    for path, path_inputs in inputs.items()
    if path in kernels and path in unread and len(path_inputs) == 1
  }
