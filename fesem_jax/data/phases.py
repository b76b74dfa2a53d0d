"""Clients of a federation: data that change over rounds, weights and true groups."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.core.client_info import checked_weights
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.utils.errors import check


class Phase(NamedTuple):
  """The data from a round on, until those of the next phase.

  Attributes:
    first_round: counted from 1.
    train: training split, on the host.
    test: test split of the same clients.
  """

  first_round: int
  train: FederatedData
  test: FederatedData


def check_phases(phases: Sequence[Phase]) -> None:
  """Raises `UserError` unless phases follow round 1 and differ in values alone."""
  firsts = [phase.first_round for phase in phases]
  rise = firsts[0] == 1 and all(a < b for a, b in itertools.pairwise(firsts))
  check(rise, f'later_phases: must begin after round 1 and rise; got {firsts[1:]}')
  for phase in phases[1:]:
    same = [_form(split) for split in phase[1:]] == [_form(s) for s in phases[0][1:]]
    where = f'later_phases: data of round {phase.first_round}'
    check(same, f'{where} have other clients, sizes or types; change values alone')


def _form(split: FederatedData) -> tuple[object, ...]:
  """What all phases share, so that the same programs serve them."""
  arrays = split.client_ids, split.offsets, split.info.names
  return (
    *(np.asarray(array).tolist() for array in arrays),
    (split.x.shape, str(split.x.dtype), split.y.shape, str(split.y.dtype)),
    (split.num_classes, split.scale, split.task, split.max_examples),
    split.groups and split.groups.count,
    split.attack and split.attack.kinds,
    split.weights is None,
  )


def with_weights(weights: Any, train: FederatedData) -> FederatedData:
  """Gives the clients of a training split weights, for `weighting=by_weight`.

  Args:
    weights: name of each client -> its weight; or [M] in the order of the clients.
    train: training split of M clients, on the host.

  Returns:
    The same with `weights`, also those of its `info`.

  Raises:
    UserError: if a client has no weight, or they are no weights.
  """
  if isinstance(weights, Mapping):
    by_name = {str(name): weight for name, weight in weights.items()}
    lacking = [name for name in train.info.names.astype(str) if name not in by_name]
    check(not lacking, f'weighting: clients {lacking[:3]!s:.60} have no weight')
    weights = [by_name[name] for name in train.info.names.astype(str)]
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
  """Phases whose training splits have true groups, numbered alike in all of them."""
  clusters = [phase.train.info.clusters for phase in phases]
  truths = [truth for truth in clusters if truth is not None]
  names = np.concatenate(truths) if len(truths) == len(phases) else None
  return [p._replace(train=with_true_groups(p.train, names)) for p in phases]
