"""Parts of a federation that are set aside: of every client, or whole clients."""

import dataclasses

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.partitions.partition import Rows, split_each
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

Pair = tuple[FederatedData, FederatedData]


def hold_out(train: FederatedData, seed: int = 0) -> Pair:
  """Splits each client's training examples 80/20, for choosing hyperparameters.

  Args:
    train: training split of M clients, on the host.
    seed: decides which examples are held out; data that test on the last rows of each
      client (`test_rows='last'`) hold out the last ones.

  Returns:
    (training split, validation split) of the same M clients, whose bad ones stay bad; a
    client with a single example keeps it for training.
  """
  rng = prng_streams.host_rng(seed, prng_streams.HOLD_OUT)
  rows, held_out = split_each(rng, _rows_of(train), train.info.in_order)
  validation = dataclasses.replace(_subset(train, held_out), attack=None)
  return _subset(train, rows), validation


@ranges.checked
def hold_out_clients(
  train: FederatedData, test: FederatedData, fraction: ranges.Share, seed: int = 0
) -> tuple[Pair, Pair]:
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
  count = round(fraction * train.num_clients)
  right = 0 < count < train.num_clients
  check(right, f'fraction: {fraction} sets aside none or all of {train.num_clients}')
  rng = prng_streams.host_rng(seed, prng_streams.UNSEEN)
  order = rng.permutation(train.num_clients)
  seen, unseen = np.sort(order[count:]), np.sort(order[:count])
  remaining = train.reorder(seen), test.reorder(seen)
  return remaining, (train.reorder(unseen), test.reorder(unseen))


@ranges.checked
def class_sample(
  test: FederatedData, per_class: ranges.Count, seed: ranges.Seed = 0
) -> tuple[np.ndarray, np.ndarray]:
  """Draws as many examples of each class, as a server may have them.

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
  check(test.task == CLASSIFICATION.name, f'class_sample: {test.task} has no classes')
  y = np.asarray(test.compact(test.y))
  labels, counts = np.unique(y, return_counts=True)
  fewest = counts.min(initial=len(y))
  check(0 < per_class <= fewest, f'per_class: a class has {fewest} examples; lower it')
  rng = prng_streams.host_rng(seed, prng_streams.HOLD_OUT, 1)
  rows = np.concatenate(
    [rng.choice(np.flatnonzero(y == i), per_class, replace=False) for i in labels]
  )
  return test.compact(test.x)[rows], y[rows]


@ranges.checked
def first_examples(
  train: FederatedData, count: ranges.Count, seed: ranges.Seed = 0
) -> FederatedData:
  """Keeps a few random training examples of each client.

  The seed and a client's id determine the order of its examples, so a larger count only
  adds examples. Shapes do not change, so that compiled programs fit every count; the
  rows that are left over belong to no client.

  Args:
    train: training split of M clients.
    count: examples of each client; a client with fewer keeps all it has.
    seed: decides the orders.

  Returns:
    The split on the host.
  """
  chosen = []
  for client, rows in zip(np.asarray(train.client_ids), _rows_of(train), strict=True):
    rng = prng_streams.host_rng(seed, prng_streams.FIRST_EXAMPLES, int(client))
    chosen.append(rows[rng.permutation(len(rows))[:count]])
  return _subset(train, chosen, len(train.y), train.max_examples)


def _rows_of(data: FederatedData) -> Rows:
  """The rows of each client in the split."""
  offsets = np.asarray(data.offsets)
  return np.split(np.arange(offsets[-1]), offsets[1:-1])


def _subset(
  data: FederatedData, rows: Rows, length: int = 0, max_examples: int = 0
) -> FederatedData:
  """The same clients with some of their rows, padded to a length."""
  sizes = [len(r) for r in rows]
  flat = np.concatenate([*rows, np.zeros(max(0, length - sum(sizes)), np.int64)])
  return dataclasses.replace(
    data,
    x=data.compact(data.x)[flat],
    y=data.compact(data.y)[flat],
    offsets=np.append(0, np.cumsum(sizes)).astype(np.int32),
    max_examples=max_examples or max(1, *sizes),
    shard_rows=None,
  )
