"""The true groups of clients, for the oracle."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.data.phases import Phase
from fesem_jax.utils.errors import UserError


def with_true_groups(
  train: FederatedData, names: np.ndarray | None = None
) -> FederatedData:
  """Adds the clients' true groups to a training split, for the oracle.

  Other methods do not look at them.

  Args:
    train: training split of M clients, on the host, whose `info` has true clusters.

    names: of all groups, where some may be without clients; None takes those of `info`.

  Returns:
    The same with `groups`, numbered in the order of `np.unique(names)`.

  Raises:
    UserError: if no true clusters are known.
  """
  truth = train.info.clusters
  if truth is None:
    raise UserError(
      '`algorithm=oracle` needs the true groups of the clients, which these data lack; '
      'choose a partition with groups, such as `partition=rotated`, or another method.'
    )
  names = np.unique(np.asarray(truth) if names is None else names)
  ids = np.searchsorted(names, np.asarray(truth))
  return dataclasses.replace(train, groups=Groups(ids.astype(np.int32), len(names)))


def phases_with_true_groups(phases: Sequence[Phase]) -> list[Phase]:
  """Phases whose training splits have true groups; see `with_true_groups`.

  Groups have the same numbers in all of them, also where one has no clients.
  """
  truths = [phase.train.info.clusters for phase in phases]
  known = [truth for truth in truths if truth is not None]
  names = np.concatenate(known) if len(known) == len(truths) else None
  return [p._replace(train=with_true_groups(p.train, names)) for p in phases]
