"""Settings of a run, and their validation."""

import dataclasses

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.selection import Selection
from fesem_jax.data import examples_checks
from fesem_jax.utils.errors import (
  UserError,
  argument,
  check_at_least,
  check_whole,
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """The arguments of `simulate` that are numbers and switches; see there."""

  rounds: int
  seed: int = 0
  clients_per_round: int = 0
  eval_every: int = 1
  finetune_epochs: int = 1
  patience: int = 0
  checkpoint_every: int = 10
  resume: bool = True
  make_portrait: bool = True
  save_models: bool | None = None
  progress: bool | None = None
  data_placement: str = 'auto'
  tell_clients: bool = False  # whether a callback wants `RoundInfo.clients`
  selection: Selection | None = None  # of the clients of a round; None draws them alike

  def check(self, train: FederatedData, test: FederatedData) -> None:
    """Raises `UserError` on numbers out of range, or data that do not fit them."""
    counts = {
      name: getattr(self, name)
      for name in (
        'seed', 'clients_per_round', 'eval_every', 'finetune_epochs', 'patience',
        'checkpoint_every',
      )
    }  # fmt: skip
    check_whole(rounds=self.rounds, **counts)
    check_at_least(1, rounds=self.rounds)
    check_at_least(0, **counts)
    if self.seed >= 2**32:
      raise UserError(
        f'{argument("seed", self.seed)} must be below 2^32: larger ones repeat the '
        'random numbers of smaller ones.'
      )
    if self.clients_per_round > train.num_clients:
      raise UserError(
        f'{argument("clients_per_round", self.clients_per_round)} is more than the '
        f'{train.num_clients} clients.'
      )
    check_splits(train, test)
    if self.selection is not None:
      self.selection.check(train.info.names)

  def sampling_rate(self, train: FederatedData) -> float:
    """The share of the clients that a round draws."""
    drawn, all_clients = self.clients_per_round, len(train.info.names)
    if self.selection is not None:  # Not at random, as amplification asks.
      return 1.0
    return drawn / all_clients if 0 < drawn < all_clients else 1.0


def check_splits(train: FederatedData, test: FederatedData) -> None:
  """Raises `UserError` on splits that are not of the same clients, or empty ones."""
  if not np.array_equal(train.client_ids, test.client_ids):
    raise UserError('The training and the test split must have the same clients.')
  for name in ('names', 'clusters'):
    of_train, of_test = getattr(train.info, name), getattr(test.info, name)
    if of_train is None or of_test is None or np.array_equal(of_train, of_test):
      continue
    i = int(np.flatnonzero(of_train != of_test)[0])
    raise UserError(
      f'`info.{name}` of client {i} is {of_train[i]} in the training split and '
      f'{of_test[i]} in the test split; give both splits the clients in the same order.'
    )
  for name in ('task', 'num_classes', 'scale', 'example_shape'):
    a, b = getattr(train, name), getattr(test, name)
    if a != b:
      raise UserError(
        f'The training split has {name} {a}, the test split {b}; they must agree.'
      )
  if len(test.y) == 0:
    raise UserError('No client has test examples; give the clients more examples.')
  empty = np.flatnonzero(np.asarray(train.sizes()) == 0)
  if len(empty):
    raise UserError(
      f'Client {train.info.names[empty[0]]} has no training examples; leave such '
      'clients out.'
    )
  examples_checks.warn_of_repeated(train, test, 'The test split')
