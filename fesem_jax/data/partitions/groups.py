"""Groups of clients, which are the true clusters, and labels that tell them apart."""

from collections.abc import Callable, Sequence

import numpy as np

from fesem_jax.data.partitions.rows import Rows
from fesem_jax.utils.errors import UserError


def groups_of_clients(num_clients: int, num_groups: int) -> np.ndarray:
  """[M] group of each client: 0, 1, ..., k-1, 0, 1, ...; sizes differ by one."""
  return np.arange(num_clients) % num_groups


def check_groups(num_clients: int, num_groups: int) -> None:
  """Raises `UserError` if there are fewer clients than groups."""
  if num_clients < num_groups:
    raise UserError(
      f'{num_clients} clients (`num_clients`) are fewer than '
      f'`partition_groups={num_groups}`; every group needs one.'
    )


def in_groups(
  rng: np.random.Generator,
  num_rows: int,
  groups: np.ndarray,
  disjoint: bool,
  deal: Callable[[int, np.ndarray, int], Rows],
) -> Rows:
  """Parts within each group.

  Args:
    rng: random state.
    num_rows: examples in the pool.
    groups: [M] group of each client.
    disjoint: if True, the groups divide the examples among themselves; if False,
      each group deals all of them to its clients, as IFCA's Rotated MNIST does.
    deal: (group, its rows in random order, number of its clients) -> rows of each of
      these clients.
  """
  num_groups = int(groups.max()) + 1
  everything = rng.permutation(num_rows)
  pools = (
    np.array_split(everything, num_groups)
    if disjoint
    else [rng.permutation(num_rows) for _ in range(num_groups)]
  )
  clients: Rows = [np.array([], int)] * len(groups)
  for group, pool in enumerate(pools):
    members = np.flatnonzero(groups == group)
    for member, rows in zip(members, deal(group, pool, len(members)), strict=True):
      clients[member] = rows
  return clients


def label_permutations(
  rng: np.random.Generator, num_groups: int, num_classes: int, occur: np.ndarray
) -> np.ndarray:
  """[k, L] a different relabeling for each group; the first is the identity.

  Labels that have training examples, `occur` [<= L], change among themselves. Raises
  `UserError` if there are fewer permutations than groups.
  """
  count = len(occur)
  # A dict, as it keeps the order and finds repeated draws at once.
  chosen: dict[tuple[int, ...], None] = {tuple(range(count)): None}
  for _ in range(1000 * num_groups):
    if len(chosen) == num_groups:
      tables = np.tile(np.arange(num_classes), (num_groups, 1))
      tables[:, occur] = occur[np.array(list(chosen))]
      return tables
    chosen[tuple(rng.permutation(count).tolist())] = None
  raise UserError(
    f'{count} classes do not have {num_groups} different relabelings; lower '
    '`partition_groups`.'
  )


def label_swaps(
  pairs: Sequence[tuple[int, int]], num_classes: int, occur: np.ndarray
) -> np.ndarray:
  """[k, L] relabeling of each group, which swaps a pair; the first is the identity.

  Groups whose goals contradict each other, as Sattler et al. (2020) and FedDrift
  (Jothimurugesan et al. 2023) make them. `pairs` are those of each group but the first.
  Raises `UserError` if there are too few labels, or none of a pair is among those that
  have training examples, `occur`.
  """
  most = max((max(pair) for pair in pairs), default=0)
  if most >= num_classes:
    raise UserError(
      f'{num_classes} classes have no label {most} to swap; lower `partition_groups`, '
      'or name pairs by `label_swaps`.'
    )
  tables = np.tile(np.arange(num_classes), (len(pairs) + 1, 1))
  for table, (a, b) in zip(tables[1:], pairs, strict=True):
    table[[a, b]] = b, a
  return tables
