"""Data that change at the beginning of some rounds, as under concept drift."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fesem_jax.core.federated_data import FederatedData
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
