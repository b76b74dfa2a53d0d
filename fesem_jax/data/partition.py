"""Partitions: which examples each client gets.

Examples are rows of the arrays of a pool, and functions return the row numbers of
each client. A data set with its own test split is dealt by two calls with the same
shares, shards or groups, so that both splits of a client are alike.
"""

from collections.abc import Sequence

import numpy as np

from fesem_jax.utils.errors import UserError

NAMES = (
  'natural', 'iid', 'unequal', 'dirichlet', 'shards', 'rotated', 'label_permuted',
)  # fmt: skip

Rows = list[np.ndarray]  # One array of row numbers for each client.


def natural(client: np.ndarray, num_clients: int) -> Rows:
  """Rows of each natural client, in order of appearance."""
  order = np.argsort(client, kind='stable')
  return np.split(order, np.cumsum(np.bincount(client, minlength=num_clients))[:-1])


def iid(rng: np.random.Generator, num_rows: int, num_clients: int) -> Rows:
  """Equal random parts; sizes differ by at most one."""
  return np.array_split(rng.permutation(num_rows), num_clients)


def dirichlet_shares(
  rng: np.random.Generator, num_classes: int, num_clients: int, alpha: float
) -> np.ndarray:
  """[L, M]: p_l ~ Dir_M(alpha), client i's share of the examples of class l.

  Section 6.1.2, after Wang et al., "Federated Learning with Matched Averaging".
  """
  return rng.dirichlet(np.full(num_clients, alpha), num_classes)


def by_shares(
  rng: np.random.Generator, labels: np.ndarray, shares: np.ndarray, minimum: int
) -> Rows:
  """Deals the examples of each class by its row of `shares` [L, M].

  Clients left with fewer than `minimum` rows take some from the largest ones.
  """
  parts: list[list[np.ndarray]] = [[] for _ in range(shares.shape[1])]
  for label, share in enumerate(shares):
    rows = rng.permutation(np.flatnonzero(labels == label))
    cuts = np.round(np.cumsum(share)[:-1] * len(rows)).astype(int)
    for part, piece in zip(parts, np.split(rows, cuts), strict=True):
      part.append(piece)
  clients = [rng.permutation(np.concatenate(part)) for part in parts]
  for i in range(len(clients)):
    while len(clients[i]) < minimum:
      largest = int(np.argmax([len(c) for c in clients]))
      if len(clients[largest]) <= minimum:
        raise UserError(
          f'{len(labels)} examples are too few for {len(clients)} clients of at '
          f'least {minimum}; lower `num_clients`.'
        )
      need = min(minimum - len(clients[i]), len(clients[largest]) - minimum)
      clients[i] = np.concatenate([clients[i], clients[largest][:need]])
      clients[largest] = clients[largest][need:]
  return clients


def deal_shards(
  rng: np.random.Generator, num_clients: int, shards_per_client: int
) -> np.ndarray:
  """[M, s]: which of M * s shards each client gets (McMahan et al. 2017)."""
  shards = rng.permutation(num_clients * shards_per_client)
  return shards.reshape(num_clients, shards_per_client)


def by_shards(labels: np.ndarray, dealt: np.ndarray) -> Rows:
  """Sorts by label, cuts into equal shards, and gives each client its own."""
  shards = np.array_split(np.argsort(labels, kind='stable'), dealt.size)
  return [np.concatenate([shards[s] for s in mine]) for mine in dealt]


def groups_of_clients(num_clients: int, num_groups: int) -> np.ndarray:
  """[M] group of each client: 0, 1, ..., k-1, 0, 1, ...; sizes differ by one."""
  return np.arange(num_clients) % num_groups


def names_of_groups(name: str, num_groups: int) -> tuple[str, ...] | None:
  """What groups 0, 1, ..., k-1 of a partition are called; None where it has none."""
  groups = range(num_groups)
  if name == 'rotated':
    return tuple(
      f'{360 * group / num_groups:.4g} degrees' for group in range(num_groups)
    )
  if name == 'label_permuted':
    permuted = (f'permuted labels {group}' for group in groups[1:])
    return ('original labels', *permuted)
  return None


def check_groups(num_clients: int, num_groups: int) -> None:
  """Raises `UserError` if there are fewer clients than groups."""
  if num_clients < num_groups:
    raise UserError(
      f'{num_clients} clients (`num_clients`) are fewer than '
      f'`partition_groups={num_groups}`; every group needs one.'
    )


def in_groups(
  rng: np.random.Generator, num_rows: int, groups: np.ndarray, disjoint: bool
) -> Rows:
  """I.i.d. parts within each group.

  Args:
    rng: random state.
    num_rows: examples in the pool.
    groups: [M] group of each client.
    disjoint: if True, the groups divide the examples among themselves; if False,
      each group deals all of them to its clients, as IFCA's Rotated MNIST does.
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
    for member, rows in zip(members, np.array_split(pool, len(members)), strict=True):
      clients[member] = rows
  return clients


def rotate(x: np.ndarray, group: int, num_groups: int) -> np.ndarray:
  """Images [N, H, W, ...] turned by group * 360 / num_groups degrees.

  Multiples of 90 degrees are exact; others are interpolated linearly.
  """
  quarter_turns, rest = divmod(4 * group, num_groups)
  if rest == 0:
    return np.rot90(x, quarter_turns, axes=(1, 2))
  from scipy import ndimage  # Slow to import.

  # The border is continued: corners of another shade would betray the angle.
  turned = ndimage.rotate(
    x.astype(np.float32),
    360 * group / num_groups,
    (1, 2),
    reshape=False,
    order=1,
    mode='nearest',
  )
  return np.round(turned).astype(np.uint8) if x.dtype == np.uint8 else turned


def label_permutations(
  rng: np.random.Generator, num_groups: int, num_classes: int
) -> np.ndarray:
  """[k, L] a different relabeling for each group; the first is the identity.

  Raises:
    UserError: if there are fewer permutations than groups.
  """
  # A dict, as it keeps the order and finds repeated draws at once.
  chosen: dict[tuple[int, ...], None] = {tuple(range(num_classes)): None}
  for _ in range(1000 * num_groups):
    if len(chosen) == num_groups:
      return np.array(list(chosen))
    chosen[tuple(rng.permutation(num_classes).tolist())] = None
  raise UserError(
    f'{num_classes} classes do not have {num_groups} different relabelings; lower '
    '`partition_groups`.'
  )


def split(
  rng: np.random.Generator, rows: Sequence[int] | np.ndarray, train_share: float = 0.8
) -> tuple[np.ndarray, np.ndarray]:
  """Divides one client's rows at random.

  The training part is never empty; the test part is empty if there is a single row.
  Section 6.1.4: "80% of each device's data for training and 20% for testing".
  """
  rows = rng.permutation(np.asarray(rows))
  cut = max(1, min(round(train_share * len(rows)), len(rows) - 1))
  return rows[:cut], rows[cut:]
