"""The two splits of all clients, dealt from a pool of examples."""

from typing import NamedTuple

import numpy as np

from fesem_jax.core.types import ClientInfo, FederatedData
from fesem_jax.data import partition as partitions
from fesem_jax.data.partition import Rows
from fesem_jax.data.pool import Pool
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.stored_rows import Rows as Examples
from fesem_jax.utils.stored_rows import read, take


class Partition(NamedTuple):
  """How examples are dealt to clients.

  Attributes:
    name: one of `partition.NAMES`; '' until the data set is known.
    num_clients: M.
    examples_per_client: training examples of each client; 0 deals all.
    num_groups: k of 'rotated' and 'label_permuted'.
    disjoint_groups: whether these groups divide the examples among themselves.
    dirichlet_alpha: concentration of 'dirichlet' and 'unequal'.
    classes_per_client: label shards of each client under 'shards'.
  """

  name: str
  num_clients: int
  examples_per_client: int
  num_groups: int
  disjoint_groups: bool
  dirichlet_alpha: float
  classes_per_client: int

  @property
  def grouped(self) -> bool:
    """Whether clients come in groups, which are the true clusters."""
    return self.name in ('rotated', 'label_permuted')

  def groups_of_clients(self) -> np.ndarray:
    """[M] group of each client."""
    return partitions.groups_of_clients(self.num_clients, self.num_groups)


def natural_clients(
  pool: Pool,
  num_clients: int,
  examples_per_client: int,
  min_examples: int,
  select: np.random.Generator,
  divide: np.random.Generator,
) -> tuple[FederatedData, FederatedData]:
  """The clients that the data set has itself.

  Args:
    pool: examples with natural clients.
    num_clients: how many to draw; 0 takes all.
    examples_per_client: most training examples of each client; 0 takes all.
    min_examples: clients with fewer examples are left out.
    select: random state that draws clients.
    divide: random state that splits the examples of each client.

  Returns:
    (training split, test split), clients in the same order.

  Raises:
    UserError: if too few clients are large enough, or one cannot be split.
  """
  assert pool.client is not None
  assert pool.names is not None
  rows = partitions.natural(pool.client, len(pool.names))
  counts = np.array([len(r) for r in rows])
  given = None  # Test examples of each client, where the files tell them.
  if pool.test_client is not None:
    given = partitions.natural(pool.test_client, len(pool.names))
    counts = counts + [len(r) for r in given]
  kept = np.flatnonzero(counts >= max(1, min_examples))
  if num_clients > len(kept) or not len(kept):
    needed = f'`num_clients={num_clients}` are asked for' if num_clients else 'lower it'
    raise UserError(
      f'Only {len(kept)} clients have at least `min_examples={min_examples}` '
      f'examples; {needed}.'
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
        'and test; leave such clients out with `min_examples=2`.'
      )
    train, test = partitions.split(divide, rows[i])
    train_rows.append(train[: examples_per_client or None])
    test_rows.append(test)
  clusters = None if pool.clusters is None else pool.clusters[kept]
  info = ClientInfo(pool.names[kept], clusters, pool.cluster_names)
  return (
    _assemble(pool, pool.x, pool.y, train_rows, info),
    _assemble(pool, *_test_examples(pool, given is not None), test_rows, info),
  )


def dealt_clients(
  pool: Pool,
  partition: Partition,
  rng: np.random.Generator,
  divide: np.random.Generator,
  relabel: np.random.Generator,
) -> tuple[FederatedData, FederatedData]:
  """Clients that the examples are dealt to.

  Args:
    pool: examples, whose natural clients do not matter here.
    partition: any but 'natural'.
    rng: random state that deals the examples.
    divide: random state that splits the examples of each client.
    relabel: random state of 'label_permuted'.

  Returns:
    (training split, test split), clients in the same order.

  Raises:
    UserError: if there are too few examples.
  """
  groups = partition.groups_of_clients() if partition.grouped else None
  train_rows, test_rows = _deal(pool, partition, groups, rng, divide)
  labels = None
  if partition.name == 'label_permuted':
    labels = partitions.label_permutations(
      relabel, partition.num_groups, pool.num_classes
    )
  count = partition.num_clients
  width = len(str(count - 1))
  info = ClientInfo(
    np.array([f'client{i:0{width}d}' for i in range(count)]),
    groups,
    partitions.names_of_groups(partition.name, partition.num_groups),
  )
  turned = partition.num_groups if partition.name == 'rotated' else 0
  return (
    _assemble(pool, pool.x, pool.y, train_rows, info, turned, labels),
    _assemble(pool, *_test_examples(pool, True), test_rows, info, turned, labels),
  )


def with_test(train: int) -> int:
  """Examples of which an 80/20 split leaves `train` for training; 0 for 0."""
  return max(train + 1, round(train / 0.8)) if train else 0


def _test_examples(pool: Pool, own: bool) -> tuple[Examples, np.ndarray]:
  """Features and labels that row numbers of the test split refer to."""
  if not own or pool.test_x is None or pool.test_y is None:
    return pool.x, pool.y
  return pool.test_x, pool.test_y


def _deal(
  pool: Pool,
  partition: Partition,
  groups: np.ndarray | None,
  rng: np.random.Generator,
  divide: np.random.Generator,
) -> tuple[Rows, Rows]:
  """Row numbers of each client's training and test examples."""
  num_clients, examples = partition.num_clients, partition.examples_per_client
  own_test = pool.test_x is not None
  # Rows that a client needs before its test part, if any, is split off.
  need = examples if own_test else with_test(examples)
  least = 1 if own_test else 2
  sizes_vary = partition.name in ('dirichlet', 'shards', 'unequal')

  available = np.arange(len(pool.y))
  if need and sizes_vary:
    if need * num_clients > len(available):
      raise _too_many(num_clients, examples, len(available))
    available = rng.choice(available, need * num_clients, replace=False)
  shares = partitions.dirichlet_shares(
    rng, pool.num_classes, num_clients, partition.dirichlet_alpha
  )
  shards = partitions.deal_shards(rng, num_clients, partition.classes_per_client)

  def deal(labels: np.ndarray, minimum: int) -> Rows:
    if partition.name == 'dirichlet':
      return partitions.by_shares(rng, labels, shares, minimum)
    if partition.name == 'unequal':  # All examples count as of one class.
      return partitions.by_shares(rng, np.zeros_like(labels), shares[:1], minimum)
    if partition.name == 'shards':
      return partitions.by_shards(labels, shards)
    if groups is None:
      return partitions.iid(rng, len(labels), num_clients)
    return partitions.in_groups(rng, len(labels), groups, partition.disjoint_groups)

  rows = [available[r] for r in deal(pool.y[available], least)]
  fewest = min(len(r) for r in rows)
  if fewest < least:
    raise UserError(
      f'`num_clients={num_clients}` leaves a client with {fewest} of '
      f'{len(available)} examples; it needs at least {least}. Lower `num_clients`.'
    )
  if need and not sizes_vary:
    if fewest < need:
      raise _too_many(num_clients, examples, len(available))
    rows = [r[:need] for r in rows]
  if pool.test_y is not None:
    return rows, deal(pool.test_y, 0)
  pairs = [partitions.split(divide, r) for r in rows]
  return [a for a, _ in pairs], [b for _, b in pairs]


def _too_many(num_clients: int, examples_per_client: int, available: int) -> UserError:
  return UserError(
    f'`num_clients={num_clients}` with `examples_per_client={examples_per_client}` '
    f'needs more than the {available} examples there are; lower one of them.'
  )


def _assemble(
  pool: Pool,
  x: Examples,
  y: np.ndarray,
  rows: Rows,
  info: ClientInfo,
  turned: int = 0,
  relabel: np.ndarray | None = None,
) -> FederatedData:
  """One split from each client's row numbers, transformed by the client's group."""
  sizes = np.array([len(r) for r in rows])
  flat = np.concatenate(rows).astype(np.int64)
  untouched = not turned and relabel is None
  if not (untouched and np.array_equal(flat, np.arange(len(x)))):  # Else: no copy.
    x, y = take(x, flat), y[flat]
  if turned:
    x = read(x)
  if info.clusters is not None and (turned or relabel is not None):
    group_of_row = np.repeat(info.clusters, sizes)
    for group in np.unique(info.clusters):
      mine = group_of_row == group
      if turned:
        assert isinstance(x, np.ndarray)
        x[mine] = partitions.rotate(x[mine], int(group), turned)
      if relabel is not None:
        y[mine] = relabel[group][y[mine]]
  return FederatedData.from_arrays(
    x,
    y,
    sizes,
    num_classes=pool.num_classes,
    scale=pool.scale,
    info=info,
    task=pool.task,
  )
