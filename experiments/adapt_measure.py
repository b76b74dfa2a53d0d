"""Accuracy of new clients, by rule and by the number of their examples."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.analysis import joining_rules
from fesem_jax.core import prng_streams, sharding
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import Schedule
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.data import arrangement, first_examples, placement
from fesem_jax.evaluation import evaluate
from fesem_jax.utils.errors import check as check_argument

from .adapt_tables import ALL, ALONE, GLOBAL, Row
from .new_clients import NewClients


class Settings(NamedTuple):
  """How new clients are measured; see the flags of `experiments.adapt`."""

  num_examples: tuple[str, ...] = ('5', '10', '20', '50', ALL)  # numbers, or 'all'
  join_epochs: int = 0  # 0 is as much as in a round of the run
  alone_epochs: int = 0  # 0 is as much as a client of the run did in all rounds
  finetune_epochs: int | None = None  # None is those of the run

  def counts(self) -> list[int | None]:
    """The numbers of examples, the smallest first; None is all."""
    numbers = sorted(int(n) for n in self.num_examples if n != ALL)
    return [*numbers, *([None] if ALL in self.num_examples else [])]


def check(settings: Settings) -> None:
  """Raises `UserError` unless numbers of examples are positive, each named once."""
  for number in settings.num_examples:
    written = number.isascii() and number.isdecimal() and len(number) < 10
    fits = number == ALL or (written and int(number) > 0)
    check_argument(fits, f'num_examples: {number!r} is no positive number or {ALL}')


# Compiled once for all rules, numbers of examples and seeds of like shapes.
_join = jax.jit(joining_rules.join, static_argnums=0)
_alone = jax.jit(joining_rules.alone, static_argnums=0)
_scores_of = jax.jit(evaluate.evaluate_clients, static_argnums=(1, 5))


def measure(
  clients: NewClients,
  model: Params,
  local: LocalTraining,
  settings: Settings,
  data_placement: str = 'auto',
) -> list[Row]:
  """A row for each number of examples and each of the five rules.

  `model` is [1, ...], the global model to compare with.
  """
  config, mesh = clients.config, local.mesh
  to_join, to_alone = _schedules(config, local, settings)
  tuning_epochs = settings.finetune_epochs
  tuning_epochs = config['finetune_epochs'] if tuning_epochs is None else tuning_epochs
  key = prng_streams.fold(jax.random.key(config['seed']), prng_streams.JOINING)
  keys = sharding.replicate(jax.random.split(key, 3), mesh)
  centers, model = sharding.replicate((clients.centers, model), mesh)
  splits = clients.train, clients.test
  on_host, _ = arrangement.ordered(local, *splits)
  whole, test = arrangement.arrange_all(local, *splits, data_placement=data_placement)
  real = len(clients.train.info.names)
  sizes = np.asarray(whole.sizes())[:real]
  # Joining by loss on all examples is what the other rules are compared with.
  by_all = np.asarray(_join(to_join, centers, whole, keys[0]).loss)[:real]
  truth = whole.info.clusters

  def shares(choice: np.ndarray) -> dict[str, float | None]:
    right = None
    if truth is not None and clients.groups is not None:
      right = float((clients.groups[choice] == truth).mean())
    return {'in_group': right, 'as_loss': float((choice == by_all).mean())}

  rows = []
  for number in settings.counts():
    train = whole
    if number is not None:
      few = first_examples(on_host, number, config['seed'])
      train = placement.place(few, mesh, placement.of(whole))
    joined = _join(to_join, centers, train, keys[0])
    own, alone_finite = _alone(to_alone, train, keys[1])
    of_training = np.asarray(joined.finite)
    rules: list[tuple[str, ClientModels, np.ndarray | None]] = [
      (rule, ClientModels(centers, getattr(joined, rule)), of_training)
      for rule in joining_rules.RULES[:2]
    ]
    rules += [
      ('loss', ClientModels(centers, joined.loss), None),
      (GLOBAL, ClientModels(model), None),
      (ALONE, own, np.asarray(alone_finite)),
    ]
    for rule, used, finite in rules:
      measured = _scores_of(used, local, train, test, keys[2], tuning_epochs)
      deployed, tuned, failed = jax.device_get(measured)
      chosen = used.clusters()
      none = {'in_group': None, 'as_loss': None}
      rows.append(
        {
          'seed': config['seed'],
          'num_examples': ALL if number is None else number,
          'rule': rule,
          'joined': evaluate.scores(deployed, local.model.measured_as),
          'finetuned': evaluate.scores(tuned, local.model.measured_as),
          **(none if chosen is None else shares(np.asarray(chosen)[:real])),
          'evaluated_on': config['evaluate_on'],
          'clients': real,
          'with_fewer': 0 if number is None else int((sizes < number).sum()),
          'training_failed': 0 if finite is None else int((~finite[:real]).sum()),
          'finetuning_failed': int(failed[:real].sum()),
        }
      )
  return rows


def _schedules(
  config: dict[str, Any], local: LocalTraining, settings: Settings
) -> tuple[LocalTraining, LocalTraining]:
  """Local training before joining, and alone."""
  batch_size, epochs, steps = local.schedule
  rounds = config['rounds']
  join = local.schedule
  if settings.join_epochs:
    join = Schedule(batch_size, settings.join_epochs)
  alone = Schedule(batch_size, epochs * rounds, steps * rounds)
  if settings.alone_epochs:
    alone = Schedule(batch_size, settings.alone_epochs)
  return local._replace(schedule=join), local._replace(schedule=alone)
