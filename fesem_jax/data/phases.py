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
  """Raises `UserError` unless phases follow each other and differ in values alone.

  The first of them is that of round 1.
  """
  firsts = [phase.first_round for phase in phases]
  rise = firsts[0] == 1 and all(a < b for a, b in itertools.pairwise(firsts))
  check(rise, f'later_phases: must begin after round 1 and rise; got {firsts[1:]}')
  for phase in phases[1:]:
    for split, first in ((phase.train, phases[0].train), (phase.test, phases[0].test)):
      same = _form(split) == _form(first)
      where = f'later_phases: data of round {phase.first_round}'
      check(same, f'{where} have other clients, sizes or types; change values alone')


def _form(split: FederatedData) -> tuple[object, ...]:
  """The form that phases have in common, so that the same programs serve all."""
  return (
    np.asarray(split.client_ids).tolist(),
    np.asarray(split.offsets).tolist(),
    np.asarray(split.info.names).tolist(),
    (split.x.shape, str(split.x.dtype), split.y.shape, str(split.y.dtype)),
    (split.num_classes, split.scale, split.task, split.max_examples),
    None if split.groups is None else split.groups.count,
    None if split.attack is None else split.attack.kinds,
    split.weights is None,
  )
