"""Subjects of the examples of rules."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fesem_jax as fj
from fesem_jax.checks import rules


def answers(rule: rules.Rule) -> list[list[str]]:
  """The messages of a rule on its bad and on its good example."""
  names = {'jax': jax, 'np': np, 'optax': optax} | globals()
  return [list(rule.find(eval(text, names))) for text in (rule.bad, rule.good)]


def split(
  change: Callable[[np.ndarray], np.ndarray] = lambda x: x,
  seed: int = 0,
  clusters: Sequence[int] | None = None,
) -> fj.FederatedData:
  """Four clients with 20 examples of 8 features; labels are signs of the first."""
  x = np.random.default_rng(seed).normal(size=(80, 8)).astype(np.float32)
  groups = None if clusters is None else np.array(clusters)
  info = fj.ClientInfo(np.array([*'abcd']), groups)
  arrays = change(x), (x[:, 0] > 0).astype(int), np.full(4, 20)
  return fj.FederatedData.from_arrays(*arrays, scale=1.0, info=info)


def data(
  change: Callable[[np.ndarray], np.ndarray] = lambda x: x,
  test: fj.FederatedData | None = None,
) -> rules.Data:
  """A training split, and one of other examples of the same clients."""
  return rules.Data(split(change), test or split(change, seed=1))


def text(
  change: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda tokens, place: tokens,
) -> rules.Data:
  """Four clients with 10 windows of 32 tokens, at places of their text."""
  place = np.arange(40)[:, None] + np.arange(33)
  splits = []
  for seed in range(2):
    tokens = np.random.default_rng(seed).integers(1, 30, (40, 33))
    rows, sizes = change(tokens, place), np.full(4, 10)
    args = rows[:, :-1], rows[:, 1:], sizes
    splits.append(fj.FederatedData.from_arrays(*args, task='sequence'))
  return rules.Data(*splits)


def deal(clusters: Sequence[int] | None) -> rules.Deal:
  """Clients of examples with known clusters; `clusters` are those of the clients."""
  return rules.Deal([0, 1], split(clusters=clusters))


def model(last: Callable[[jax.Array], jax.Array] = lambda x: x) -> fj.Model:
  """Logistic regression with a last layer."""
  plain = fj.models.build('logistic', (8,), 2)
  return plain._replace(apply=lambda params, x: last(plain.apply(params, x)))


def noisy(key: jax.Array, x: jax.Array) -> jax.Array:
  """Examples with Gaussian noise."""
  return x + jax.random.normal(key, jnp.shape(x))


def local(
  optimizer: optax.GradientTransformation | None = None,
  model: fj.Model | None = None,
  lr_schedule: Any = None,
  augmentation: Any = None,
) -> rules.Local:
  """Local training of logistic regression."""
  chosen = model or globals()['model']()
  of = fj.local_training(chosen, optimizer or optax.sgd(0.1), lr_schedule=lr_schedule)
  return rules.Local(of._replace(augmentation=augmentation), split())


def request(
  name: str = 'fed_avg',
  of: rules.Local | None = None,
  patience: int = 0,
  validation: Sequence[fj.FederatedData] = (),
  trainings: int | None = None,
) -> rules.Request:
  """Returns the request of a run of a method."""
  options = {'num_clusters': 2} if name == 'fesem' else {}
  method = fj.algorithms.build(name, (of or local()).local, **options)
  args = method, data(), 10, patience, bool(options), validation, trainings
  return rules.Request(*args)


def outcome(
  sizes: Sequence[int] = (2, 2), trained: float = 1.0, **metrics: float
) -> rules.Outcome:
  """A run of five rounds, with such metrics."""
  deployed = {'micro_accuracy': 0.9, 'micro_loss': 0.3} | metrics
  summary = {
    'deployed': deployed,
    'num_clients': 4,
    'trained': trained,
    'clusters': {'sizes': list(sizes), 'ari': None},
  }
  return rules.Outcome(summary, [{'failed': 0}] * 5, split())
