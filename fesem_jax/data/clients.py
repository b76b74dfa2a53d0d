"""What is known of the clients of a federation: their weights and true groups."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fesem_jax.core.client_info import checked_weights
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.data.phases import Phase
from fesem_jax.utils.errors import check


def with_weights(
  weights: Any, train: FederatedData, others: Collection[str] = ()
) -> FederatedData:
  """Gives the clients of a training split weights, for `weighting=by_weight`.

  Args:
    weights: name of each client -> its weight; or [M] in the order of the clients.
    train: training split of M clients, on the host.
    others: names of clients that may have weights although they are not in the split.

  Returns:
    The same with `weights`, also those of its `info`.

  Raises:
    UserError: if a client has no weight, a name is unknown, or they are no weights.
  """
  if isinstance(weights, Mapping):
    names, by_name = train.info.names.astype(str), {str(k): weights[k] for k in weights}
    unknown = sorted(by_name.keys() - {*names, *map(str, others)})
    check(not unknown, f'weighting: no client is called {unknown[:1]}')
    lacking = [name for name in names if name not in by_name]
    check(not lacking, f'weighting: clients {lacking[:3]!s:.60} have no weight')
    weights = [by_name[name] for name in names]
  floats = checked_weights(weights, 'weighting')
  fits = floats.shape == (train.num_clients,)
  check(fits, f'weighting: shape {floats.shape}; there are {train.num_clients} clients')
  info = dataclasses.replace(train.info, weights=floats)
  return dataclasses.replace(train, info=info, weights=floats)


def with_true_groups(
  train: FederatedData, names: np.ndarray | None = None
) -> FederatedData:
  """Adds the clients' true groups to a training split, for the oracle.

  Args:
    train: training split of M clients, on the host, whose `info` has true clusters.
    names: of all groups, where some may be without clients; None takes those of `info`.

  Returns:
    The same with `groups`, numbered in the order of `np.unique(names)`.

  Raises:
    UserError: if no true clusters are known.
  """
  truth = train.info.clusters
  check(truth is not None, 'oracle: the data have no true groups; e.g. rotated has')
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
