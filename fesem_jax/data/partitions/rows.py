"""The examples of each client.

Examples are rows of the arrays of a pool, and functions return the row numbers of
each client. A data set with its own test split is dealt by two calls with the same
shares, shards or groups, so that both splits of a client are alike.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from fesem_jax.utils.errors import UserError

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

  Clients left with fewer than `minimum` rows take some from the largest ones. Examples
  of a class that no client has a share of are left out.
  """
  counts = np.bincount(labels, minlength=len(shares))
  dealt = [
    sizes_of(share, count) if share.any() else np.zeros_like(share, int)
    for share, count in zip(shares, counts[: len(shares)], strict=True)
  ]
  clients = by_counts(rng, labels, np.array(dealt))
  # Largest first, and the first of equally large ones.
  givers = [(-len(rows), i) for i, rows in enumerate(clients) if len(rows) > minimum]
  heapq.heapify(givers)
  for i in range(len(clients)):
    while len(clients[i]) < minimum:
      if not givers:
        raise UserError(
          f'{len(labels)} examples are too few for {len(clients)} clients of at '
          f'least {minimum}; lower `num_clients`.'
        )
      _, largest = heapq.heappop(givers)
      need = min(minimum - len(clients[i]), len(clients[largest]) - minimum)
      clients[i] = np.concatenate([clients[i], clients[largest][:need]])
      clients[largest] = clients[largest][need:]
      if len(clients[largest]) > minimum:
        heapq.heappush(givers, (-len(clients[largest]), largest))
  return clients


def by_counts(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> Rows:
  """Deals each client so many random examples of each class, of `counts` [L, M]."""
  parts: list[list[np.ndarray]] = [[] for _ in range(counts.shape[1])]
  for label, count in enumerate(counts):
    if not count.any():
      continue
    rows = rng.permutation(np.flatnonzero(labels == label))
    ends = np.cumsum(count).tolist()
    for part, size, end in zip(parts, count.tolist(), ends, strict=True):
      if size:
        part.append(rows[end - size : end])
  nothing = np.array([], int)
  return [rng.permutation(np.concatenate(part or [nothing])) for part in parts]


def _cuts(share: np.ndarray, count: int) -> np.ndarray:
  """[M - 1] where so many examples are cut, by the clients' shares [M]."""
  return np.round(np.cumsum(share)[:-1] * count).astype(int)


def sizes_of(share: np.ndarray, count: int) -> np.ndarray:
  """[M] how many of so many examples of a class `by_shares` gives to each client."""
  return np.diff(_cuts(share, count), prepend=0, append=count)


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
