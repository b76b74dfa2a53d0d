"""Checks of what a run is asked for, and the rules of `checks` on runs."""

import numpy as np

from fesem_jax.checks import local as _local  # noqa: F401 - registers its rules.
from fesem_jax.checks import runs as _runs  # noqa: F401
from fesem_jax.checks.rules import Data, Local, Outcome, Request, find
from fesem_jax.core import traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data.splits import check_phases
from fesem_jax.evaluation import evaluate
from fesem_jax.models.model_checks import trace_local
from fesem_jax.run import programs
from fesem_jax.run.callbacks.best_round import BestRound
from fesem_jax.run.callbacks.callback import check_callbacks
from fesem_jax.run.results.records import Record
from fesem_jax.run.runner import Runner
from fesem_jax.run.spec import Spec
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check


def check_run(spec: Spec) -> None:
  """Raises `UserError` on what cannot be run."""
  algorithm, train = spec.algorithm, spec.train
  right = isinstance(algorithm, Algorithm)
  check(right, f'algorithm: must be an Algorithm; got {type(algorithm).__name__}')
  ranges.check_arguments(Spec, vars(spec))
  drawn, count = spec.clients_per_round, train.num_clients
  check(drawn <= count, f'clients_per_round: {drawn} is more than the {count} clients')
  check_splits(train, spec.test)
  check_callbacks(spec.callbacks)
  local = algorithm.local
  ranges.check_arguments(LocalTraining, local._asdict())
  ranges.check_arguments(Schedule, local.schedule._asdict())
  traffic.check_private(algorithm.traffic, local.sends)
  check_phases(spec.phases)
  trace_local(local, train)
  evaluate.check_metrics(local.model)
  if spec.unseen is not None:
    check_splits(*spec.unseen)


def check_splits(train: FederatedData, test: FederatedData) -> None:
  """Raises `UserError` on splits that are not of the same clients, or empty ones."""
  for name in ('names', 'clusters'):
    train_value, test_value = getattr(train.info, name), getattr(test.info, name)
    if train_value is not None and test_value is not None:
      same = np.array_equal(train_value, test_value)
      check(same, f'train and test: have other clients (info.{name})')
  alike = np.array_equal(train.client_ids, test.client_ids)
  check(alike, 'train and test: have other clients (client_ids)')
  for name in ('task', 'num_classes', 'scale', 'example_shape'):
    a, b = getattr(train, name), getattr(test, name)
    check(a == b, f'train and test: have {name} {a} and {b}')
  check(len(test.y), 'test: no client has examples')
  empty = np.flatnonzero(np.asarray(train.sizes()) == 0)
  names = train.info.names[empty[:1]]
  check(not len(empty), f'train: client {"".join(names)} has no examples; leave it out')


def check_before(spec: Spec, runner: Runner) -> list[str]:
  """Texts of the rules on a run before it begins."""
  local, ignore = spec.algorithm.local, tuple(spec.ignore_checks)
  data, is_own = Data(spec.train, spec.test), spec.algorithm.made_by is None
  is_noised = local.sends is not None and local.sends.privacy is not None
  functions = local.model, local.optimizer, local.augmentation, local.sends
  texts = find(data, ignore)
  texts += programs.once(
    ('rules', *functions, local.keep_optimizer_state, spec.train.example_shape, ignore),
    lambda: find(Local(local, spec.train), ignore),
  )
  request = Request(
    runner.algorithm,
    data,
    spec.rounds,
    spec.patience,
    spec.patience > 0 and runner.deployed.has_clusters(),
    [x.validation for x in spec.callbacks if isinstance(x, BestRound)],
    runner.trainings if is_noised and is_own else None,
  )
  return texts + find(request, ignore)


def check_after(spec: Spec, summary: Record, history: list[Record]) -> list[str]:
  """Texts of the rules on a finished run."""
  return find(Outcome(summary, history, spec.test), spec.ignore_checks)
