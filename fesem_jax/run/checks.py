"""Checks of what a run is asked for, before anything is written."""

import numpy as np

from fesem_jax.core import traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data.phases import check_phases
from fesem_jax.evaluation import evaluate
from fesem_jax.models.model_checks import trace_local
from fesem_jax.run.spec import Spec
from fesem_jax.utils import ranges
from fesem_jax.utils.display import kind_of
from fesem_jax.utils.errors import check


def check_run(spec: Spec) -> None:
  """Raises `UserError` on what cannot be run."""
  algorithm, train = spec.algorithm, spec.train
  right = isinstance(algorithm, Algorithm)
  check(right, f'algorithm: must be an Algorithm; got {kind_of(algorithm)}')
  check_arguments(spec)
  local = algorithm.local
  ranges.check_arguments(LocalTraining, local._asdict())
  ranges.check_arguments(Schedule, local.schedule._asdict())
  traffic.check_private(algorithm.traffic, local.sends)
  check_phases(spec.phases)
  if local.work is not None:
    local.work.check(train, local.schedule)
  trace_local(local, train)
  evaluate.check_metrics(local.model)
  if spec.unseen is not None:
    check_splits(*spec.unseen)


def check_arguments(spec: Spec) -> None:
  """Raises `UserError` on numbers out of range, or data that do not fit them."""
  ranges.check_arguments(Spec, vars(spec))
  drawn, count = spec.clients_per_round, spec.train.num_clients
  check(drawn <= count, f'clients_per_round: {drawn} is more than the {count} clients')
  check_splits(spec.train, spec.test)


def check_splits(train: FederatedData, test: FederatedData) -> None:
  """Raises `UserError` on splits that are not of the same clients, or empty ones."""
  for name in ('names', 'clusters'):
    of_train, of_test = getattr(train.info, name), getattr(test.info, name)
    if of_train is not None and of_test is not None:
      same = np.array_equal(of_train, of_test)
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
