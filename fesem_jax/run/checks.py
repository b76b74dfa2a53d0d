"""Checks of what a run is asked for, before anything is written."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.core import batching, local_optimizers, traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, RoundSchedule, check_training
from fesem_jax.core.sending import check_sends
from fesem_jax.data.phases import Phase, check_phases
from fesem_jax.evaluation import evaluate
from fesem_jax.models.model_checks import check_model
from fesem_jax.run import own_functions
from fesem_jax.run.programs import Programs
from fesem_jax.run.settings import Settings, check_splits
from fesem_jax.utils import processes
from fesem_jax.utils.display import kind_of
from fesem_jax.utils.errors import NeverPatient, UserError, argument
from fesem_jax.utils.notices import warn_once


def check(
  algorithm: Algorithm,
  phases: Sequence[Phase],
  unseen: tuple[FederatedData, FederatedData] | None,
  settings: Settings,
  programs: Programs,
) -> None:
  """Raises `UserError` on what cannot be run; for the arguments, see `Timeline`."""
  if not isinstance(algorithm, Algorithm):
    raise UserError(
      f'`algorithm` is {kind_of(algorithm)}, not an Algorithm; a function that builds '
      'one is called with `local` first.'
    )
  _, train, test = phases[0]
  settings.check(train, test)
  check_training(algorithm.local)
  own_functions.renew(algorithm, programs)
  traffic.check_private(algorithm.traffic, algorithm.local.sends)
  check_phases(phases)
  if algorithm.local.work is not None:
    algorithm.local.work.check(train)
  local = algorithm.local
  tuned = local.schedule._replace(epochs=settings.finetune_epochs, steps=0)
  steps = max(
    batching.most_steps(each, train.max_examples) for each in (local.schedule, tuned)
  )
  for name, schedule, count in (
    ('lr_schedule', local.lr_schedule, settings.rounds),
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
  if unseen is not None:
    if not isinstance(unseen, tuple | list) or len(unseen) != 2:
      raise UserError('`unseen` must be a training and a test split of other clients.')
    check_splits(*unseen)
    _check_unseen(train, unseen[0])


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
