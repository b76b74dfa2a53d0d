"""Data sets by their flag names: `load` returns the two splits of all clients."""

import itertools
import os
import pathlib
from typing import Any

import numpy as np

from fesem_jax import streams
from fesem_jax.base import ClientInfo, FederatedData
from fesem_jax.data import partition as _partition
from fesem_jax.data import sources
from fesem_jax.data.partition import Rows
from fesem_jax.data.pool import Pool
from fesem_jax.data.sources import DATASETS
from fesem_jax.errors import UserError, check_at_least, check_choice

__all__ = ['DATASETS', 'hold_out', 'hold_out_clients', 'load']

DEFAULT_NUM_CLIENTS = 100  # Where the data set has no clients of its own.

# Beyond any use; larger numbers would only run out of memory later.
MAX_CLIENTS, MAX_GROUPS = 10**7, 1000
MAX_ALPHA = 1e300  # Gamma variates of a larger one overflow.


def load(
  name: str,
  *,
  source: str = '',
  partition: str = '',
  data_dir: str | os.PathLike[str] = '',
  num_clients: int = 0,
  examples_per_client: int = 0,
  min_examples: int = 0,
  partition_groups: int = 4,
  disjoint_groups: bool = False,
  dirichlet_alpha: float = 0.5,
  classes_per_client: int = 2,
  seed: int = 0,
  **options: Any,
) -> tuple[FederatedData, FederatedData]:
  """Loads a data set and deals it to clients.

  A data set with its own test split (MNIST) deals its training images to the
  clients' training splits and its test images to their test splits by the same
  rule. Natural clients keep the split that their files have (LEAF, TensorFlow
  Federated); other data without a test split is divided 80/20 inside each client.

  Args:
    name: one of `DATASETS`, 'leaf:FOLDER' or 'npz:FILE'.
    source: where it comes from, see `sources.DATASETS`; '' takes what is there.
    partition: one of `partition.NAMES`; '' is 'natural' where the data set has
      clients of its own and 'iid' elsewhere.
    data_dir: folder of the data; '' is the environment's FESEM_DATA_DIR.
    num_clients: M; 0 is all natural clients, or 100.
    examples_per_client: training examples of each client (of natural clients:
      at most); 0 deals all.
    min_examples: leaves out natural clients with fewer examples, both splits
      counted.
    partition_groups: k of 'rotated' and 'label_permuted'; the true clusters.
    disjoint_groups: whether these groups share out the images or each hold all.
    dirichlet_alpha: of 'dirichlet'; small is skewed.
    classes_per_client: label shards of each client under 'shards'.
    seed: decides everything random.
    **options: of single data sets, see `sources.Options`.

  Returns:
    (training split, test split), clients in the same order.

  Raises:
    UserError: naming the flag or file at fault.
  """
  chosen = sources.Options(**options)
  check_at_least(
    0,
    num_clients=num_clients,
    examples_per_client=examples_per_client,
    min_examples=min_examples,
    seed=seed,
  )
  check_at_least(
    1, partition_groups=partition_groups, classes_per_client=classes_per_client
  )
  if not 0 < dirichlet_alpha <= MAX_ALPHA:
    raise UserError(
      f'--dirichlet_alpha={dirichlet_alpha} must be positive, and at most {MAX_ALPHA}.'
    )
  for flag, value, most in (
    ('num_clients', num_clients, MAX_CLIENTS),
    ('partition_groups', partition_groups, MAX_GROUPS),
  ):
    if value > most:
      raise UserError(f'--{flag}={value} must be at most {most}.')
  generated = num_clients or DEFAULT_NUM_CLIENTS
  sources.check(name, source, chosen, generated, partition_groups)
  if partition:
    check_choice('partition', partition, _partition.NAMES)
  folder = pathlib.Path(data_dir or os.environ.get('FESEM_DATA_DIR', '') or 'data')
  rng = lambda stream: streams.host_rng(seed, stream)
  request = sources.Request(
    folder,
    chosen,
    generated,
    _with_test(examples_per_client),
    _partition.groups_of_clients(generated, partition_groups),
    rng(streams.GENERATE),
  )
  pool = sources.load(name, source, request)
  partition = partition or ('natural' if pool.client is not None else 'iid')
  _check(name, pool, partition, num_clients, min_examples, partition_groups)
  if partition == 'natural':
    return _load_natural(
      pool,
      num_clients,
      examples_per_client,
      min_examples,
      rng(streams.SELECT),
      rng(streams.SPLIT),
    )
  num_clients = num_clients or DEFAULT_NUM_CLIENTS
  shared = partition in ('rotated', 'label_permuted') and not disjoint_groups
  for flag, value in (
    ('num_clients', num_clients),
    ('classes_per_client', classes_per_client),
  ):
    if value > len(pool.y) * (partition_groups if shared else 1):
      raise UserError(
        f'--{flag}={value} is more than the {len(pool.y)} training examples there are '
        'to deal; lower it.'
      )
  groups = None
  if partition in ('rotated', 'label_permuted'):
    groups = _partition.groups_of_clients(num_clients, partition_groups)

  train_rows, test_rows = _deal(
      pool, partition, num_clients, examples_per_client, groups, disjoint_groups,
      dirichlet_alpha, classes_per_client, rng(streams.PARTITION),
      rng(streams.SPLIT),
  )  # fmt: skip
  relabel = None
  if partition == 'label_permuted':
    relabel = _partition.label_permutations(
      rng(streams.RELABEL), partition_groups, pool.num_classes
    )
  info = ClientInfo(
    np.array([f'client{i:0{len(str(num_clients - 1))}d}' for i in range(num_clients)]),
    groups,
  )
  turned = partition_groups if partition == 'rotated' else 0
  train = _assemble(pool, pool.x, pool.y, train_rows, info, turned, relabel)
  test = _assemble(pool, *_test_examples(pool, True), test_rows, info, turned, relabel)
  return train, test


def hold_out(
  train: FederatedData, seed: int = 0
) -> tuple[FederatedData, FederatedData]:
  """Parts each client's training examples 80/20, for choosing hyperparameters.

  Args:
    train: training split, on the host.
    seed: decides which examples.

  Returns:
    (training split, validation split) of the same clients; a client with a single
    example keeps it for training.
  """
  rng = streams.host_rng(seed, streams.HOLD_OUT)
  offsets = np.asarray(train.offsets)
  kept, held = [], []
  for first, last in itertools.pairwise(offsets):
    rows = np.arange(first, last)
    a, b = _partition.split(rng, rows) if len(rows) > 1 else (rows, rows[:0])
    kept.append(a)
    held.append(b)

  def part(rows: Rows) -> FederatedData:
    flat = np.concatenate(rows)
    return FederatedData.from_arrays(
      np.asarray(train.x)[flat],
      np.asarray(train.y)[flat],
      np.array([len(r) for r in rows]),
      num_classes=train.num_classes,
      scale=train.scale,
      client_ids=np.asarray(train.client_ids),
      info=train.info,
    )

  return part(kept), part(held)


def hold_out_clients(
  train: FederatedData, test: FederatedData, fraction: float, seed: int = 0
) -> tuple[tuple[FederatedData, FederatedData], tuple[FederatedData, FederatedData]]:
  """Sets whole clients aside, to see how models serve those they never trained on.

  Args:
    train: training split, on the host.
    test: test split of the same clients.
    fraction: share of the clients to set aside.
    seed: decides which.

  Returns:
    (training, test) of the clients that remain, and of those set aside.

  Raises:
    UserError: if either would be nobody.
  """
  if not 0 <= fraction <= 1:
    raise UserError(f'--unseen_fraction={fraction} must lie between 0 and 1.')
  count = round(fraction * train.num_clients)
  if not 0 < count < train.num_clients:
    raise UserError(
      f'--unseen_fraction={fraction:g} sets {count} of {train.num_clients} clients '
      'aside; at least one must be and one must remain.'
    )
  rng = streams.host_rng(seed, streams.UNSEEN)
  order = rng.permutation(train.num_clients)
  seen, unseen = np.sort(order[count:]), np.sort(order[:count])
  both = lambda clients: (train.reorder(clients), test.reorder(clients))
  return both(seen), both(unseen)


def _check(name, pool, partition, num_clients, min_examples, partition_groups):
  """Raises `UserError` on options that make no sense for this pool."""
  shape = pool.x.shape[1:]
  if not shape or 0 in shape:
    raise UserError(
      f'--dataset={name}: an example has shape {shape}, which holds no features.'
    )
  if partition == 'natural' and pool.client is None:
    others = ', '.join(n for n in _partition.NAMES if n != 'natural')
    raise UserError(
      f'--partition=natural: --dataset={name} has no clients of its own; choose '
      f'one of {others}.'
    )
  if partition == 'rotated' and pool.x.ndim < 3:
    raise UserError(f'--partition=rotated needs images, which --dataset={name} is not.')
  if partition == 'rotated' and pool.x.shape[1] != pool.x.shape[2]:
    raise UserError(
      f'--partition=rotated needs square images; those of --dataset={name} are '
      f'{pool.x.shape[1]} by {pool.x.shape[2]}.'
    )
  if min_examples and partition != 'natural':
    raise UserError(
      f'--min_examples chooses natural clients; it does not apply to '
      f'--partition={partition}.'
    )
  grouped = partition in ('rotated', 'label_permuted')
  if grouped and (num_clients or DEFAULT_NUM_CLIENTS) < partition_groups:
    raise UserError(
      f'{num_clients or DEFAULT_NUM_CLIENTS} clients (--num_clients) are fewer than '
      f'--partition_groups={partition_groups}; every group needs one.'
    )


def _load_natural(
  pool: Pool,
  num_clients: int,
  examples_per_client: int,
  min_examples: int,
  select: np.random.Generator,
  divide: np.random.Generator,
) -> tuple[FederatedData, FederatedData]:
  """Clients as the data set has them."""
  assert pool.client is not None
  assert pool.names is not None
  rows = _partition.natural(pool.client, len(pool.names))
  counts = np.array([len(r) for r in rows])
  given = None  # Test examples of each client, where the data set parts them.
  if pool.test_client is not None:
    given = _partition.natural(pool.test_client, len(pool.names))
    counts = counts + [len(r) for r in given]
  kept = np.flatnonzero(counts >= max(1, min_examples))
  if num_clients > len(kept) or not len(kept):
    raise UserError(
      f'Only {len(kept)} clients have at least --min_examples={min_examples} '
      f'examples, fewer than --num_clients={num_clients or 1}.'
    )
  if num_clients:
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
        'and test; leave such clients out with --min_examples=2.'
      )
    train, test = _partition.split(divide, rows[i])
    train_rows.append(train[: examples_per_client or None])
    test_rows.append(test)
  clusters = None if pool.clusters is None else pool.clusters[kept]
  info = ClientInfo(pool.names[kept], clusters)
  return (
    _assemble(pool, pool.x, pool.y, train_rows, info),
    _assemble(pool, *_test_examples(pool, given is not None), test_rows, info),
  )


def _with_test(train: int) -> int:
  """Examples of which an 80/20 split leaves `train` for training; 0 for 0."""
  return max(train + 1, round(train / 0.8)) if train else 0


def _test_examples(pool: Pool, own: bool) -> tuple[np.ndarray, np.ndarray]:
  """The examples that test rows number: the data set's own, or all."""
  if not own or pool.test_x is None or pool.test_y is None:
    return pool.x, pool.y
  return pool.test_x, pool.test_y


def _deal(
  pool: Pool,
  partition: str,
  num_clients: int,
  examples_per_client: int,
  groups: np.ndarray | None,
  disjoint: bool,
  alpha: float,
  classes_per_client: int,
  rng: np.random.Generator,
  divide: np.random.Generator,
) -> tuple[Rows, Rows]:
  """Training and test rows of each client under a synthetic partition."""
  own_test = pool.test_x is not None
  # Rows that a client needs before its test part, if any, is split off.
  need = examples_per_client
  if need and not own_test:
    need = _with_test(need)
  least = 1 if own_test else 2

  available = np.arange(len(pool.y))
  if need and partition in ('dirichlet', 'shards'):  # Sizes vary about the mean.
    if need * num_clients > len(available):
      raise _too_many(num_clients, examples_per_client, len(available))
    available = rng.choice(available, need * num_clients, replace=False)
  shares = _partition.dirichlet_shares(rng, pool.num_classes, num_clients, alpha)
  shards = _partition.deal_shards(rng, num_clients, classes_per_client)

  def deal(labels: np.ndarray, minimum: int) -> Rows:
    if partition == 'dirichlet':
      return _partition.by_shares(rng, labels, shares, minimum)
    if partition == 'shards':
      return _partition.by_shards(labels, shards)
    if groups is None:
      return _partition.iid(rng, len(labels), num_clients)
    return _partition.in_groups(rng, len(labels), groups, disjoint)

  rows = [available[r] for r in deal(pool.y[available], least)]
  fewest = min(len(r) for r in rows)
  if fewest < least:
    raise UserError(
      f'--num_clients={num_clients} leaves a client with {fewest} of '
      f'{len(available)} examples; it needs at least {least}. Lower --num_clients.'
    )
  if need and partition not in ('dirichlet', 'shards'):
    if fewest < need:
      raise _too_many(num_clients, examples_per_client, len(available))
    rows = [r[:need] for r in rows]
  if pool.test_y is not None:
    return rows, deal(pool.test_y, 0)
  pairs = [_partition.split(divide, r) for r in rows]
  return [a for a, _ in pairs], [b for _, b in pairs]


def _too_many(num_clients: int, examples_per_client: int, available: int) -> UserError:
  return UserError(
    f'--num_clients={num_clients} with --examples_per_client={examples_per_client} '
    f'needs more than the {available} examples there are; lower one of them.'
  )


def _assemble(
  pool: Pool,
  x: np.ndarray,
  y: np.ndarray,
  rows: Rows,
  info: ClientInfo,
  turned: int = 0,
  relabel: np.ndarray | None = None,
) -> FederatedData:
  """One split from each client's rows, transformed by the client's group."""
  sizes = np.array([len(r) for r in rows])
  flat = np.concatenate(rows).astype(np.int64)
  untouched = not turned and relabel is None
  if not (untouched and np.array_equal(flat, np.arange(len(x)))):  # Else: no copy.
    x, y = x[flat], y[flat]
  if info.clusters is not None and (turned or relabel is not None):
    group_of_row = np.repeat(info.clusters, sizes)
    for group in np.unique(info.clusters):
      mine = group_of_row == group
      if turned:
        x[mine] = _partition.rotate(x[mine], int(group), turned)
      if relabel is not None:
        y[mine] = relabel[group][y[mine]]
  return FederatedData.from_arrays(
    x, y, sizes, num_classes=pool.num_classes, scale=pool.scale, info=info
  )
