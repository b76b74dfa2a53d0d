"""The runs of methods that are compared or tuned, side by side where they can be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from fesem_jax.analysis import tuning
from fesem_jax.analysis.tuning import Values
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.results.frames import Recorded
from fesem_jax.run.simulation import simulate_many
from fesem_jax.utils.errors import Diverged, UserError, check

# A method, or a function of hyperparameters that gives it.
Method = Algorithm | Callable[..., Algorithm]

# Training and test split; or a function of the seed that gives them.
Splits = tuple[FederatedData, FederatedData]
Data = Splits | Callable[[int], Splits]

# What a run leaves, or why it cannot run.
Outcome = Recorded | UserError


def splits_of(data: Data, seed: int) -> Splits:
  """The splits of a seed."""
  return data(seed) if callable(data) else data


def given(outcome: Outcome) -> dict[str, Any] | None:
  """The summary of a run, None if it diverged; raises what it raised."""
  if isinstance(outcome, UserError):
    raise outcome
  return outcome.summary


def check_seeds(seeds: Sequence[int]) -> None:
  """Raises `UserError` on a seed that would repeat a run."""
  check(len(set(seeds)) == len(seeds), 'seeds: one is named twice; give each once')


def arguments(splits: Splits, seed: int, values: Values) -> dict[str, Any]:
  """The arguments of `simulate_many` that runs of a method differ in."""
  return {'train': splits[0], 'test': splits[1], 'seed': seed, 'values': values}


def tuning_runs(
  make: Callable[..., Algorithm],
  tries: Sequence[Values],
  seeds: Sequence[int],
  splits: Mapping[int, Splits],
  options: dict[str, Any],
  by: str = 'deployed',
  like: Sequence[Splits] = (),
) -> dict[tuple[str, int], Outcome]:
  """(point in words, seed) -> the outcome of one method's run with it.

  Models are fine-tuned only where the figures of fine-tuned models decide (`by`), or
  where reported runs share the programs, whose data are `like`.
  """
  outcomes: dict[tuple[str, int], Outcome] = {}
  runs: dict[tuple[str, int], dict[str, Any]] = {}
  for values in tries:
    places = [(tuning.in_words(values), seed) for seed in seeds]
    try:
      make(**values)
    except UserError as e:
      outcomes |= dict.fromkeys(places, e)
      continue
    runs |= {place: arguments(splits[place[1]], place[1], values) for place in places}
  common = {'eval_every': 0} | options
  if by == 'deployed' and not like:
    common['finetune_epochs'] = 0
  of_runs = outcomes_of(make, list(runs.values()), common, like)
  return outcomes | dict(zip(runs, of_runs, strict=True))


def outcomes_of(
  method: Method,
  runs: Sequence[Mapping[str, Any]],
  options: dict[str, Any],
  like: Sequence[Splits] = (),
) -> list[Outcome]:
  """The outcome of each run; see `simulate_many`."""

  def keep(place: int, outcome: Any) -> Any:
    if isinstance(outcome, Diverged):
      logging.warning(
        'A run with seed %d diverged: %s', runs[place].get('seed'), outcome
      )
      outcome = None
    if isinstance(outcome, UserError):
      return outcome
    return Recorded.of(outcome, seed=runs[place].get('seed', 0))

  return simulate_many(method, runs, keep=keep, like=like, **options)
