"""Bad clients: which they are, what they do, and what is measured without them.

A bad client lies about its labels or about its model. It lies in the same way to every
method, as `local.train_cohort` is where local models come from. What it keeps for
itself (layers of its own, and whole models that no server receives) stays as it was
trained, and so do the test examples of all clients.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import streams, tree
from fesem_jax.base import FederatedData, HostOrDeviceArray, Params
from fesem_jax.errors import UserError, argument, check_choice, check_share
from fesem_jax.method import ClientModels

KINDS = ('none', 'label_flip', 'sign_flip', 'noise')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Corruption:
  """Which clients are bad, and what they do.

  Attributes:
    bad: [M] bool; it travels with the clients when they are reordered.
    kind: one of `KINDS`, see `corrupted`.
  """

  bad: HostOrDeviceArray
  kind: str = dataclasses.field(metadata={'static': True})

  @property
  def of_models(self) -> bool:
    """Whether bad clients send other models than they trained."""
    return self.kind in ('sign_flip', 'noise')


def corrupted(
  train: FederatedData, corrupt: str, corrupt_fraction: float, seed: int = 0
) -> FederatedData:
  """The training split of a federation some of whose clients are bad.

  They are drawn once, by client id; those of a smaller share are among those of a
  larger one. Examples and clients that are to be set aside are to be taken before.

  Args:
    train: training split of M clients, on the host.
    corrupt: 'label_flip', a bad client trains on labels L - 1 - y;
      'sign_flip', of the model w that it trained from a start s, it sends
      s - (w - s); 'noise', it sends s + |w - s| z / sqrt(P), where z are standard
      normal draws of each round and client: a random direction of about the length
      of its true change; 'none' leaves the data as it is.
    corrupt_fraction: share of the clients that are bad, rounded to whole clients.
    seed: of the run.

  Raises:
    UserError: on an unknown kind, on one argument without the other, or unless at
      least one client would be bad and one honest.
  """
  check_choice('corrupt', corrupt, KINDS)
  check_share(corrupt_fraction=corrupt_fraction)
  if corrupt == 'none':
    if corrupt_fraction:
      raise UserError(
        f'{argument("corrupt_fraction", corrupt_fraction)} needs `corrupt`: what bad '
        f'clients do, one of {", ".join(KINDS[1:])}.'
      )
    return train
  count = round(corrupt_fraction * train.num_clients)
  if not 0 < count < train.num_clients:
    raise UserError(
      f'{argument("corrupt_fraction", corrupt_fraction)} makes {count} of '
      f'{train.num_clients} clients bad; with {argument("corrupt", corrupt)} at least '
      'one must be bad, and at least one honest.'
    )
  by_id = np.argsort(np.asarray(train.client_ids), kind='stable')
  order = streams.host_rng(seed, streams.CORRUPT).permutation(train.num_clients)
  bad = np.zeros(train.num_clients, bool)
  bad[by_id[order[:count]]] = True
  y = np.asarray(train.y)
  if corrupt == 'label_flip':
    rows = np.repeat(bad, np.diff(np.asarray(train.offsets)))
    y = np.where(rows, train.num_classes - 1 - y, y).astype(y.dtype)
  return dataclasses.replace(train, y=y, corruption=Corruption(bad, corrupt))


def honest(train: FederatedData) -> np.ndarray | None:
  """[M] bool, clients that are not bad; None where no client is to be bad."""
  if train.corruption is None:
    return None
  return ~np.asarray(train.corruption.bad)


def check_models_only(train: FederatedData, method: str, others: str) -> None:
  """Raises `UserError` if bad clients would have to lie about more than models.

  Args:
    train: training split.
    method: whose clients send something else too.
    others: what they send beside models.
  """
  if train.corruption is not None and train.corruption.of_models:
    raise UserError(
      f'{argument("corrupt", train.corruption.kind)} is not defined for {method}, '
      f'whose clients send {others} beside models; choose `corrupt=label_flip`, or '
      'another method.'
    )


def as_sent(
  data: FederatedData,
  ids: jax.Array,
  starts: ClientModels,
  trained: Params,
  keys: jax.Array,
) -> Params:
  """The models that clients send back, those of bad ones in place of the trained.

  Only layers that the server had sent are sent back: the shared ones of the starts.

  Args:
    data: training split.
    ids: [C] int32 positions in `data`.
    starts: what the C clients started from.
    trained: [C, ...] finite models.
    keys: [C] keys of the clients in this round.

  Returns:
    [C, ...] finite models.
  """
  corruption: Any = data.corruption
  if corruption is None or not corruption.of_models or starts.shared is None:
    return trained
  received, changed = starts._replace(own=None).params(ids.shape[0]), trained
  if starts.own is not None:
    received = {n: layer for n, layer in received.items() if layer is not None}
    changed = {n: trained[n] for n in received}
  bad = jnp.asarray(corruption.bad).at[ids].get(mode='fill', fill_value=False)
  change = jax.tree.map(jnp.subtract, changed, received)
  if corruption.kind == 'sign_flip':
    lie = jax.tree.map(jnp.subtract, received, change)
  else:
    lie = jax.tree.map(jnp.add, received, _noise(change, keys))
  # A lie beyond float32 would stop the run as a client that failed does not.
  changed = tree.where(bad & tree.all_finite(lie), lie, changed)
  return changed if starts.own is None else trained | changed


def _noise(change: Params, keys: jax.Array) -> Params:
  """[C, ...] random directions, in expectation of each change's squared length."""
  leaves, structure = jax.tree.flatten(change)
  size = sum(x[0].size for x in leaves)
  squares = tree.row_distances(change, tree.zeros_like(change))
  scale = jnp.sqrt(squares) / math.sqrt(size)

  def draw(key: jax.Array, scale: jax.Array) -> list[jax.Array]:
    own = jax.random.split(streams.fold(key, streams.NOISE), len(leaves))
    shapes = [x.shape[1:] for x in leaves]
    return [
      scale * jax.random.normal(k, shape) for k, shape in zip(own, shapes, strict=True)
    ]

  return jax.tree.unflatten(structure, jax.vmap(draw)(keys, scale))
