"""Checks of what a run is asked for, before anything is written."""

import functools
from typing import Any

import jax
import numpy as np

from fesem_jax.core import batching, local_optimizers, traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, RoundSchedule, check_training
from fesem_jax.core.sending import check_sends
from fesem_jax.data import examples_checks
from fesem_jax.data.phases import check_phases
from fesem_jax.evaluation import evaluate
from fesem_jax.models.model_checks import check_model
from fesem_jax.run import own_functions, sequence_checks
from fesem_jax.run.programs import Programs
from fesem_jax.run.spec import Spec
from fesem_jax.utils import processes
from fesem_jax.utils.display import kind_of
from fesem_jax.utils.errors import (
  NeverPatient,
  UserError,
  argument,
  check_at_least,
  check_whole,
)
from fesem_jax.utils.notices import warn_once


def check(spec: Spec, programs: Programs) -> None:
  """Raises `UserError` on what cannot be run."""
  algorithm, train, unseen = spec.algorithm, spec.train, spec.unseen
  if not isinstance(algorithm, Algorithm):
    raise UserError(
      f'`algorithm` is {kind_of(algorithm)}, not an Algorithm; a function that builds '
      'one is called with `local` first.'
    )
  check_arguments(spec)
  check_training(algorithm.local)
  own_functions.renew(algorithm, programs)
  traffic.check_private(algorithm.traffic, algorithm.local.sends)
  check_phases(spec.phases)
  if algorithm.local.work is not None:
    algorithm.local.work.check(train)
  local = algorithm.local
  tuned = local.schedule._replace(epochs=spec.finetune_epochs, steps=0)
  steps = max(
    batching.most_steps(each, train.max_examples) for each in (local.schedule, tuned)
  )
  for name, schedule, count in (
    ('lr_schedule', local.lr_schedule, spec.rounds),
    ('local_lr_schedule', local.local_lr_schedule, steps),
  ):
    if schedule is not None:
      check_rates = functools.partial(_check_rates, name, schedule, count)
      programs.once((name, schedule, count), check_rates)
  model = local.model
  of_data = train.example_shape, train.num_classes, train.task
  programs.once(('model', model, of_data), lambda: check_model(model, *of_data))
  # `local._replace` may have replaced what `local_training` has checked.
  functions = model, local.optimizer, local.augmentation, local.sends, of_data
  programs.once(('functions', *functions), lambda: _check_functions(local, train))
  evaluate.check_metrics(model)

  def looks_ahead(*args: np.ndarray) -> bool:
    look = functools.partial(sequence_checks.looks_ahead, model, *args)
    is_own = own_functions.is_own_model(model)
    return is_own and programs.once(('looks ahead', model, of_data), look)

  sequence_checks.warn(train, looks_ahead)
  if unseen is not None:
    if not isinstance(unseen, tuple | list) or len(unseen) != 2:
      raise UserError('`unseen` must be a training and a test split of other clients.')
    check_splits(*unseen)
    _check_unseen(train, unseen[0])


def check_arguments(spec: Spec) -> None:
  """Raises `UserError` on numbers out of range, or data that do not fit them."""
  counts = {
    name: getattr(spec, name)
    for name in (
      'seed', 'clients_per_round', 'eval_every', 'finetune_epochs', 'patience',
      'checkpoint_every',
    )
  }  # fmt: skip
  check_whole(rounds=spec.rounds, **counts)
  check_at_least(1, rounds=spec.rounds)
  check_at_least(0, **counts)
  if spec.seed >= 2**32:
    raise UserError(
      f'{argument("seed", spec.seed)} must be below 2^32: larger ones repeat the '
      'random numbers of smaller ones.'
    )
  if spec.clients_per_round > spec.train.num_clients:
    raise UserError(
      f'{argument("clients_per_round", spec.clients_per_round)} is more than the '
      f'{spec.train.num_clients} clients.'
    )
  check_splits(spec.train, spec.test)
  if spec.selection is not None:
    spec.selection.check(spec.train.info.names)


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


def _check_unseen(train: FederatedData, unseen: FederatedData) -> None:
  """Raises `UserError` if a client that takes no part is one of the run."""
  if processes.count() > 1:  # Each may hold the examples of some clients only.
    return
  places = {str(name): i for i, name in enumerate(train.info.names)}
  for i, name in enumerate(map(str, unseen.info.names)):
    if name in places and all(
      map(np.array_equal, train.client(places[name]), unseen.client(i))
    ):
      raise UserError(
        f'Client {name} of `callbacks.Unseen` takes part in the run; give it the '
        'clients that data.hold_out_clients has set aside.'
      )


def _check_functions(local: LocalTraining, train: FederatedData) -> None:
  """Warns of functions that do not do what they seem to, or raises `UserError`."""
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  local_optimizers.check(local.optimizer, params)
  if local.sends is not None:
    check_sends(local.sends, local.model)
  own_functions.check(local, train)


def _check_rates(name: str, schedule: RoundSchedule, count: int) -> None:
  """Raises `UserError` if a schedule is negative or not finite in rounds or steps.

  Warns of one that seems to be of learning rates.

  `name` is its argument, and `count` how many rounds, or local steps, there are.
  """
  numbers = np.arange(count, dtype=np.int32)
  rates = np.asarray(jax.jit(lambda n: jax.lax.map(schedule, n))(numbers))
  if rates.max() < 0.5:
    warn_once(
      f'{argument(name)} is at most {rates.max():.3g}: its factors multiply the '
      'learning rate of the optimizer, and are no learning rates.'
    )
  bad = np.flatnonzero(~(np.isfinite(rates) & (rates >= 0)))
  if len(bad):
    of = 'round' if name == 'lr_schedule' else 'step'
    raise UserError(
      f'{argument(name)} gives {rates[bad[0]]:g} for {of} {bad[0] + 1}; its factors '
      'must be finite and not negative.'
    )


def check_clusters(
  algorithm: Algorithm, state: Any, train: FederatedData, patience: int
) -> None:
  """Raises `NeverPatient` unless clients deploy from clusters."""
  if not jax.eval_shape(algorithm.deployed, state, train).has_clusters():
    raise NeverPatient(
      f'{argument("patience", patience)} would never end the run: it waits for '
      'clusters that settle, and the method has none; leave it out.'
    )
