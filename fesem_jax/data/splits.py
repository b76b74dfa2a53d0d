"""Parts of a federation that are set aside: of every client, or whole clients."""

import dataclasses
import itertools

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.partitions.rows import Rows, split
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError, check_at_least
from fesem_jax.utils.stored_rows import take


def hold_out(
  train: FederatedData, seed: int = 0
) -> tuple[FederatedData, FederatedData]:
  """Splits each client's training examples 80/20, for choosing hyperparameters.

  Args:
    train: training split of M clients, on the host.
    seed: decides which examples are held out.

  Returns:
    (training split, validation split) of the same M clients, whose bad ones stay bad; a
    client with a single example keeps it for training.
  """
  rng = prng_streams.host_rng(seed, prng_streams.HOLD_OUT)
  offsets = np.asarray(train.offsets)
  kept, held = [], []
  for first, last in itertools.pairwise(offsets):
    rows = np.arange(first, last)
    a, b = split(rng, rows) if len(rows) > 1 else (rows, rows[:0])
    kept.append(a)
    held.append(b)

  def part(rows: Rows) -> FederatedData:
    flat = np.concatenate(rows)
    federation = FederatedData.from_arrays(
      take(train.compact(train.x), flat),
      np.asarray(take(train.compact(train.y), flat)),
      np.array([len(r) for r in rows]),
      num_classes=train.num_classes,
      scale=train.scale,
      client_ids=np.asarray(train.client_ids),
      info=train.info,
      task=train.task,
    )
    return dataclasses.replace(federation, groups=train.groups)

  return dataclasses.replace(part(kept), attack=train.attack), part(held)


def hold_out_clients(
  train: FederatedData, test: FederatedData, fraction: float, seed: int = 0
) -> tuple[tuple[FederatedData, FederatedData], tuple[FederatedData, FederatedData]]:
  """Sets whole clients aside, to evaluate models on clients that never trained them.

  Args:
    train: training split of M clients, on the host.
    test: test split of the same clients.
    fraction: share of the clients to set aside, between 0 and 1.
    seed: decides which clients.

  Returns:
    (training, test) of the clients that remain, and (training, test) of those set
    aside.

  Raises:
    UserError: if no client would remain, or none would be set aside.
  """
  if not 0 <= fraction <= 1:
    raise UserError(f'`fraction={fraction}` must lie between 0 and 1.')
  count = round(fraction * train.num_clients)
  if not 0 < count < train.num_clients:
    raise UserError(
      f'`fraction={fraction:g}` sets {count} of {train.num_clients} clients aside; at '
      'least one must be set aside, and at least one must remain.'
    )
  rng = prng_streams.host_rng(seed, prng_streams.UNSEEN)
  order = rng.permutation(train.num_clients)

  def of_clients(clients: np.ndarray) -> tuple[FederatedData, FederatedData]:
    return train.reorder(clients), test.reorder(clients)

  return of_clients(np.sort(order[count:])), of_clients(np.sort(order[:count]))


def server_test(
  test: FederatedData, per_class: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
  """Draws a balanced test set, as a server may have it, from clients' test examples.

  Clients' own test examples have the classes of their clients; a class that few clients
  have counts here as much as any other.

  Args:
    test: test split of M clients, on the host.
    per_class: examples of each class that occurs.
    seed: decides which examples.

  Returns:
    x [T, ...] as in the split, and y [T] int32 labels, class by class.

  Raises:
    UserError: if targets are no classes, or a class has fewer examples.
  """
  check_at_least(1, per_class=per_class)
  if test.task != CLASSIFICATION.name:
    raise UserError(
      f'`server_test` balances the classes of a classification; the data are for '
      f'{test.task}; use the test examples as they are.'
    )
  y = np.asarray(test.compact(test.y))
  labels, counts = np.unique(y, return_counts=True)
  if not len(y) or counts.min() < per_class:
    least = f'class {labels[counts.argmin()]} has {counts.min()}' if len(y) else 'none'
    raise UserError(
      f'`per_class={per_class}` is more than each class has test examples: {least}; '
      'lower it.'
    )
  rng = prng_streams.host_rng(seed, prng_streams.HOLD_OUT, 1)
  rows = np.concatenate(
    [rng.choice(np.flatnonzero(y == i), per_class, replace=False) for i in labels]
  )
  return np.asarray(take(test.compact(test.x), rows)), y[rows]


def first_examples(train: FederatedData, count: int, seed: int = 0) -> FederatedData:
  """Keeps a few random training examples of each client.

  The seed and a client's id determine the order of its examples, so a larger count
  only adds examples. Shapes do not change, so that compiled programs fit
  every count; the rows that are left over belong to no client.

  Args:
    train: training split of M clients.
    count: examples of each client; a client with fewer keeps all it has.
    seed: decides the orders.

  Returns:
    The split on the host.

  Raises:
    UserError: if `count` is less than 1.
  """
  check_at_least(1, count=count)
  offsets = np.asarray(train.offsets)
  kept = []
  for client, (first, last) in zip(
    np.asarray(train.client_ids), itertools.pairwise(offsets), strict=True
  ):
    rng = prng_streams.host_rng(seed, prng_streams.FIRST_EXAMPLES, int(client))
    kept.append(first + rng.permutation(last - first)[:count])
  rows = np.zeros(len(train.y), np.int64)
  flat = np.concatenate(kept)
  rows[: len(flat)] = flat
  sizes = [len(own) for own in kept]
  return dataclasses.replace(
    train,
    x=take(train.compact(train.x), rows),
    y=take(train.compact(train.y), rows),
    offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
    shard_rows=None,
  )
