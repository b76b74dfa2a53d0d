"""Rules that split the examples of both splits among clients."""

from collections.abc import Callable

import numpy as np

from fesem_jax.data.partitions import groups, rows, shares
from fesem_jax.data.partitions.rows import Rows
from fesem_jax.data.partitions.value import Partition
from fesem_jax.utils.errors import UserError

# (labels [T] of a split, least rows of a client) -> rows of each client.
Dealer = Callable[[np.ndarray, int], Rows]


def dealer(
  rng: np.random.Generator,
  partition: Partition,
  labels: np.ndarray,
  num_classes: int,
  num_clients: int,
) -> Dealer:
  """The function that deals examples to clients without groups, or of one group.

  The rule is `Partition.dealing`. `rng` is also the random state of each deal,
  `labels` [T] are those of the training examples, and `num_clients` is M, or the
  clients of the group. Raises `UserError` if there are too few examples for such
  clients.
  """
  kind, alpha = partition.dealing, partition.dirichlet_alpha
  of_classes, dealt = _first_draws(rng, partition, num_classes, num_clients)
  if kind == 'iid':
    return lambda labels, minimum: rows.iid(rng, len(labels), num_clients)
  if kind == 'shards':
    return lambda labels, minimum: rows.by_shards(labels, dealt)
  if kind in ('unequal', 'lognormal'):
    of_all = of_classes[:1]
    if kind == 'lognormal':
      of_all = shares.lognormal(rng, num_clients, partition.lognormal_sigma)
    # All examples count as of one class.
    return lambda labels, minimum: rows.by_shares(
      rng, np.zeros(len(labels), np.int32), of_all, minimum
    )
  if kind == 'dirichlet':
    if least := partition.dirichlet_min_examples:
      of_classes = shares.capped_dirichlet(
        rng, labels, num_classes, num_clients, alpha, least
      )
    return lambda labels, minimum: rows.by_shares(rng, labels, of_classes, minimum)
  if kind == 'dirichlet_labels':
    own = shares.labels_of_clients(rng, labels, num_classes, num_clients, alpha)
    return lambda labels, minimum: rows.by_counts(
      rng, labels, shares.equal_sizes(rng, labels, own)
    )
  per_client, few = partition.labels_per_client, np.zeros((num_classes, num_clients))
  present, places = np.unique(labels, return_inverse=True)  # Some may have no examples.
  if kind == 'labels':
    few[present] = shares.equal_labels(rng, len(present), num_clients, per_client)
  else:
    few[present] = shares.power_law(
      rng, places, len(present), num_clients, per_client, partition.power_law_sigma
    )
  # No client takes examples of another's labels.
  return lambda labels, minimum: rows.by_shares(rng, labels, few, 0)


def _first_draws(
  rng: np.random.Generator, partition: Partition, num_classes: int, num_clients: int
) -> tuple[np.ndarray, np.ndarray]:
  """Dirichlet shares [L, M] and shards [M, s].

  They are drawn for every partition, so that each deals the same examples as before
  there were others.
  """
  return (
    rows.dirichlet_shares(rng, num_classes, num_clients, partition.dirichlet_alpha),
    rows.deal_shards(rng, num_clients, partition.classes_per_client),
  )


def grouped_dealer(
  rng: np.random.Generator, partition: Partition, num_classes: int, need: int
) -> Dealer:
  """The function that deals examples to groups of clients, and to those of each.

  `rng` is also the random state of each deal; `need` are the rows of each client on
  average where sizes differ; 0 deals all.
  """
  _first_draws(rng, partition, num_classes, partition.count)
  of_clients = partition.groups_of_clients()
  within: dict[int, Dealer] = {}

  def deal(labels: np.ndarray, minimum: int) -> Rows:
    def in_group(group: int, pool: np.ndarray, count: int) -> Rows:
      if partition.dealing == 'iid':
        return np.array_split(pool, count)
      if group not in within:  # The training split, which comes first.
        if need * count > len(pool):
          raise too_many(partition, len(pool))
        pool = pool[: need * count or None]
        within[group] = dealer(rng, partition, labels[pool], num_classes, count)
      return [pool[r] for r in within[group](labels[pool], minimum)]

    return groups.in_groups(
      rng, len(labels), of_clients, partition.disjoint_groups, in_group
    )

  return deal


def too_many(partition: Partition, available: int) -> UserError:
  """The error where clients are to have more examples than there are."""
  return UserError(
    f'`num_clients={partition.count}` with '
    f'`examples_per_client={partition.examples_per_client}` needs more than the '
    f'{available} examples there are; lower one of them.'
  )
