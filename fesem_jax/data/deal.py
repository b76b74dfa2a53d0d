"""The two splits of all clients, dealt from a pool of examples."""

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import deal_in_clusters
from fesem_jax.data.partitions import changes, dealers
from fesem_jax.data.partitions import rows as rows_of
from fesem_jax.data.partitions.changes import Change
from fesem_jax.data.partitions.rows import Rows
from fesem_jax.data.partitions.value import Partition
from fesem_jax.data.pool import Pool
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.stored_rows import Rows as Examples
from fesem_jax.utils.stored_rows import read, take


def natural_clients(
  pool: Pool, partition: Partition, seed: int
) -> tuple[FederatedData, FederatedData]:
  """The training and the test split of the clients that the data set has itself.

  The partition, 'natural', says how many clients to draw, the most training examples of
  each, and the fewest of a client that is kept. `seed` decides which clients, and how
  their examples are split. Both splits have the clients in the same order. Raises
  `UserError` if too few clients are large enough, or one cannot be split.
  """
  num_clients, min_examples = partition.num_clients, partition.min_examples
  examples_per_client = partition.examples_per_client
  divide = prng_streams.host_rng(seed, prng_streams.SPLIT)
  assert pool.client is not None
  assert pool.names is not None
  rows = rows_of.natural(pool.client, len(pool.names))
  counts = np.array([len(r) for r in rows])
  given = None  # Test examples of each client, where the files tell them.
  if pool.test_client is not None:
    given = rows_of.natural(pool.test_client, len(pool.names))
    counts = counts + [len(r) for r in given]
  kept = np.flatnonzero(counts >= max(1, min_examples))
  if num_clients > len(kept) or not len(kept):
    needed = f'lower it or `num_clients={num_clients}`' if num_clients else 'lower it'
    raise UserError(
      f'Only {len(kept)} clients have at least `min_examples={min_examples}` '
      f'examples; {needed}.'
    )
  if num_clients:
    select = prng_streams.host_rng(seed, prng_streams.SELECT)
    kept = np.sort(select.choice(kept, num_clients, replace=False))
  train_rows, test_rows = [], []
  for i in kept:
    if given is not None:
      if 0 < examples_per_client < len(rows[i]):
        chosen = divide.choice(rows[i], examples_per_client, replace=False)
        rows[i] = np.sort(chosen)
      train_rows.append(rows[i])
      test_rows.append(given[i])
      continue
    if len(rows[i]) < 2:
      raise UserError(
        f'Client {pool.names[i]} has 1 example, which cannot be split into training '
        'and test; leave such clients out with `min_examples=2`.'
      )
    train, test = rows_of.split(divide, rows[i])
    train_rows.append(train[: examples_per_client or None])
    test_rows.append(test)
  clusters = None if pool.clusters is None else pool.clusters[kept]
  info = ClientInfo(
    pool.names[kept], clusters, pool.cluster_names, pool.class_names,
    None if pool.weights is None else pool.weights[kept],
  )  # fmt: skip
  return (
    _assemble(pool, pool.x, pool.y, train_rows, info),
    _assemble(pool, *_test_examples(pool, given is not None), test_rows, info),
  )


def dealt_clients(
  pool: Pool, partition: Partition, seed: int, groups: np.ndarray
) -> tuple[FederatedData, FederatedData]:
  """The training and the test split of clients that the examples are dealt to.

  The partition is any but 'natural', and natural clients of the pool do not matter
  here. `groups` [M] is the group of each client, if there are groups; clients are dealt
  examples by the partition's own groups, whatever these are; `seed` decides everything
  random. Both splits have the clients in the same order. Raises `UserError` if there
  are too few examples.
  """
  clusters: np.ndarray | None
  if partition.in_clusters:
    examples = partition.examples_per_client
    need = examples if pool.test_y is not None else with_test(examples)
    train_rows, test_rows, clusters = deal_in_clusters.deal(pool, partition, seed, need)
  else:
    train_rows, test_rows = _deal(pool, partition, seed)
  width = len(str(partition.count - 1))
  names = np.array([f'client{i:0{width}d}' for i in range(partition.count)])
  cluster_names = pool.cluster_names
  if partition.grouping:
    clusters = groups
    cluster_names = changes.names_of_groups(partition)
  elif not partition.in_clusters:
    sources = pool.client, pool.client if pool.test_y is None else pool.test_client
    clusters = _clusters_of(pool, train_rows, test_rows, sources)
  info = ClientInfo(names, clusters, cluster_names, pool.class_names)
  change = changes.of_partition(
    partition, groups, pool.num_classes, np.unique(pool.y), pool.scale, seed
  )
  return (
    _assemble(pool, pool.x, pool.y, train_rows, info, change, 0),
    _assemble(pool, *_test_examples(pool, True), test_rows, info, change, 1),
  )


def listed_clients(
  pool: Pool, partition: Partition, seed: int
) -> tuple[FederatedData, FederatedData]:
  """The training and the test split of clients whose rows are listed.

  The partition is 'rows'. Where it does not say which rows are for testing, these are
  the rows of the data set's own test split that are listed. If none is, its test
  examples are dealt like the training examples of their class; without a test split,
  each client's rows are split 80/20. Clients keep the order of their rows. Raises
  `UserError` on a row that does not exist, or a client that cannot be split.
  """
  names, train, test = partition.listed
  count, own = len(pool.y), 0 if pool.test_y is None else len(pool.test_y)
  most = max(int(rows.max(initial=0)) for rows in [*train, *(test or [])])
  if test is not None and own:
    last = max(int(rows.max(initial=0)) for rows in test)
    if last < min(count, own):
      raise UserError(
        f'`client_rows` has no test row above {last}: these are training examples. '
        f'Rows of the test split count on from them; add {count} to each.'
      )
  if test is None and own and most >= count:
    train, test = [r[r < count] for r in train], [r[r >= count] for r in train]
  elif test is None and own:
    test = [rows + count for rows in _like_training(pool, train, seed)]
  elif test is None:
    if single := [i for i, rows in enumerate(train) if len(rows) < 2]:
      raise UserError(
        f'`client_rows`: client {single[0]} has 1 row, which cannot be split into '
        'training and test; leave it out, or list train and test.'
      )
    divide = prng_streams.host_rng(seed, prng_streams.SPLIT)
    pairs = [rows_of.split(divide, np.arange(len(rows))) for rows in train]
    test = [rows[np.sort(b)] for rows, (_, b) in zip(train, pairs, strict=True)]
    train = [rows[np.sort(a)] for rows, (a, _) in zip(train, pairs, strict=True)]
  short = [i for i, rows in enumerate(train) if not len(rows)]
  if short or not sum(map(len, test)):
    raise UserError(
      f'`client_rows` leaves client {short[0]} without training rows.'
      if short
      else '`client_rows` has no test rows.'
    )
  width = len(str(len(train) - 1))
  numbered = [f'client{i:0{width}d}' for i in range(len(train))]
  source = pool.client  # Rows count on from the training to the test examples.
  if source is not None and pool.test_client is not None:
    source = np.concatenate([source, pool.test_client])
  clusters = _clusters_of(pool, train, test, (source, source))
  info = ClientInfo(
    np.array(names or numbered), clusters, pool.cluster_names, pool.class_names
  )
  return _listed(pool, train, info), _listed(pool, test, info)


def _like_training(pool: Pool, train: Rows, seed: int) -> Rows:
  """Rows of the test split, each class dealt as the clients have it for training."""
  assert pool.test_y is not None
  labels, tested = pool.y, pool.test_y
  if labels.ndim > 1:  # Of a regression or sequences: one class.
    labels, tested = (np.zeros(len(y), np.int32) for y in (labels, tested))
  counts = np.stack(
    [np.bincount(labels[rows], minlength=pool.num_classes) for rows in train], axis=1
  )
  shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
  rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
  return rows_of.by_shares(rng, tested, shares, 0)


def _listed(pool: Pool, rows: Rows, info: ClientInfo) -> FederatedData:
  """One split from rows that count on from the training to the test examples."""
  count, flat = len(pool.y), np.concatenate(rows)
  if pool.test_x is None or pool.test_y is None or flat.max() < count:
    return _assemble(pool, pool.x, pool.y, rows, info)
  if flat.min() >= count:
    return _assemble(pool, pool.test_x, pool.test_y, [r - count for r in rows], info)
  x = np.concatenate([read(pool.x), read(pool.test_x)])
  return _assemble(pool, x, np.concatenate([pool.y, pool.test_y]), rows, info)


def with_test(train: int) -> int:
  """Examples of which an 80/20 split leaves `train` for training; 0 for 0."""
  return max(train + 1, round(train / 0.8)) if train else 0


def _test_examples(pool: Pool, own: bool) -> tuple[Examples, np.ndarray]:
  """Features and labels that row numbers of the test split refer to."""
  if not own or pool.test_x is None or pool.test_y is None:
    return pool.x, pool.y
  return pool.test_x, pool.test_y


def _deal(pool: Pool, partition: Partition, seed: int) -> tuple[Rows, Rows]:
  """Row numbers of each client's training and test examples."""
  rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
  divide = prng_streams.host_rng(seed, prng_streams.SPLIT)
  num_clients, examples = partition.count, partition.examples_per_client
  own_test = pool.test_x is not None
  # Rows that a client needs before its test part, if any, is split off.
  need = examples if own_test else with_test(examples)
  least = 1 if own_test else 2
  sizes_vary = partition.dealing != 'iid'

  available = np.arange(len(pool.y))
  if need and sizes_vary and not partition.grouping:
    if need * num_clients > len(available):
      raise dealers.too_many(partition, len(available))
    available = rng.choice(available, need * num_clients, replace=False)
  labels = pool.y[available]
  if partition.grouping:
    average = need if sizes_vary else 0
    deal = dealers.grouped_dealer(rng, partition, pool.num_classes, average)
  else:
    deal = dealers.dealer(rng, partition, labels, pool.num_classes, num_clients)
  rows = [available[r] for r in deal(labels, least)]
  fewest = min(len(r) for r in rows)
  if fewest < max(least, 0 if sizes_vary else need):
    raise dealers.too_many(partition, len(available))
  if need and not sizes_vary:
    rows = [r[:need] for r in rows]
  if pool.test_y is not None:
    return rows, deal(pool.test_y, 0)
  pairs = [rows_of.split(divide, r) for r in rows]
  return [a for a, _ in pairs], [b for _, b in pairs]


def _clusters_of(
  pool: Pool,
  train_rows: Rows,
  test_rows: Rows,
  sources: tuple[np.ndarray | None, np.ndarray | None],
) -> np.ndarray | None:
  """[M] true cluster of each dealt client, if the examples of each are of one.

  `sources` are the clients of the pool that the rows of either split belong to.
  """
  train_source, test_source = sources
  if pool.clusters is None or train_source is None:
    return None
  clusters, of_client = np.unique(pool.clusters, return_inverse=True)
  train = [of_client[train_source[rows]] for rows in train_rows]
  test = [train[0][:0]] * len(train)
  if test_source is not None:
    test = [of_client[test_source[rows]] for rows in test_rows]
  pairs = zip(train, test, strict=True)
  if any((np.concatenate(pair) != pair[0][0]).any() for pair in pairs):
    return None
  return clusters[[own[0] for own in train]]


def _assemble(
  pool: Pool,
  x: Examples,
  y: np.ndarray,
  rows: Rows,
  info: ClientInfo,
  change: Change | None = None,
  split: int = 0,
) -> FederatedData:
  """One split from each client's row numbers, changed as the partition says."""
  sizes = np.array([len(r) for r in rows])
  flat = np.concatenate(rows).astype(np.int64)
  if change is not None or not np.array_equal(
    flat, np.arange(len(x))
  ):  # Else: no copy.
    x, y = take(x, flat), y[flat]
  if change is not None:
    client_of_row = np.repeat(np.arange(len(sizes)), sizes)
    if change.features is not None:
      x = change.features(read(x), client_of_row, split)
    if change.labels is not None:
      y = change.labels(y, client_of_row)
  return FederatedData.from_arrays(
    x,
    y,
    sizes,
    num_classes=pool.num_classes,
    scale=pool.scale,
    info=info,
    task=pool.task,
  )
