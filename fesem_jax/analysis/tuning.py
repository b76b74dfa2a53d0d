"""Values of hyperparameters chosen from a grid, by the mean over seeds."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax import tasks
from fesem_jax.run.results.frames import Recorded
from fesem_jax.tasks import CLASSIFICATION, Metric
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError, WorkdirError

# Values by the name of what is tuned.
Values = dict[str, Any]

# What a run leaves, or why it cannot run.
Outcome = Recorded | UserError

# Kinds of models whose metric may decide.
KINDS = 'deployed', 'finetuned'


class Search(NamedTuple):
  """The values, seeds and models of a search.

  Attributes:
    grid: name of each hyperparameter -> its values.
    seeds: of the tuning runs; they must differ from those that are reported.
    by: one of `KINDS`, whose first metric of the task decides.
  """

  grid: Mapping[str, Sequence[Any]]
  seeds: Sequence[int] = range(10_000, 10_003)
  by: str = 'deployed'


class Choice(NamedTuple):
  """The hyperparameters chosen for one method.

  Attributes:
    values: that are chosen; empty where every point diverged with some seed.
    tried: every point of the grid that the method can run with.
    scores: of each of these points, and each seed; None where the run diverged.
    seeds: of the runs.
    metric: what the scores are.
    refused: the other points, and why the method cannot run with them.
  """

  values: Values
  tried: list[Values]
  scores: list[list[float | None]]
  seeds: list[int]
  metric: Metric = CLASSIFICATION.primary
  refused: tuple[tuple[Values, UserError], ...] = ()

  @property
  def means(self) -> list[float | None]:
    """The mean score of each point; None where it diverged with some seed."""
    return [None if None in s else float(np.mean(s)) for s in self.scores]  # type: ignore[arg-type]

  @property
  def at_edge(self) -> list[str]:
    """Names of chosen values that are the least, but 0, or the largest number."""
    names = []
    for name, value in self.values.items():
      grid = [values[name] for values in self.tried if name in values]
      numbers = all(isinstance(v, int | float) and type(v) is not bool for v in grid)
      if numbers and len(set(grid)) > 1 and value in (min(grid) or None, max(grid)):
        names.append(name)
    return names

  def entry(self) -> dict[str, Any]:
    """The choice and the scores behind it, as tune.json holds them."""
    name = f'validation_micro_{self.metric.name}'
    tried = [
      {'values': values, name: mean, 'of_seeds': scores}
      for values, mean, scores in zip(self.tried, self.means, self.scores, strict=True)
    ]
    about = {'chosen': self.values, 'at_edge': self.at_edge, 'seeds': self.seeds}
    return about | {'tried': tried}


def points(
  grid: Mapping[str, Sequence[Any]],
  applies: Callable[[Values, str], bool] = lambda values, name: True,
) -> list[Values]:
  """The distinct points of a grid, without the values that do not apply.

  `applies` says of a point and a name whether that hyperparameter has an effect next to
  the point's other values.
  """
  distinct: list[Values] = []
  for combination in itertools.product(*grid.values()):
    whole = dict(zip(grid, combination, strict=True))
    point = {name: value for name, value in whole.items() if applies(whole, name)}
    if point and point not in distinct:
      distinct.append(point)
  return distinct


def choose(
  tries: Sequence[Values], outcomes: Sequence[Sequence[Outcome]], search: Search
) -> Choice:
  """The point with the best mean over seeds, the first of equal ones.

  A point that diverged with one seed, or cannot run, is not chosen. Where some clients
  are bad, scores are of the honest ones. `outcomes` are of each point of `tries` and
  each seed. Raises `UserError` if no point can run, or a `WorkdirError`.
  """
  errors = [
    next((r for r in runs if isinstance(r, UserError)), None) for runs in outcomes
  ]
  for error in errors:
    if isinstance(error, WorkdirError):  # Not a property of the point.
      raise error
  ran = [(v, runs) for v, runs, e in zip(tries, outcomes, errors, strict=True) if not e]
  refused = tuple((v, e) for v, e in zip(tries, errors, strict=True) if e)
  if not ran:
    raise refused[0][1]
  summaries = [[run.summary for run in runs] for _, runs in ran]  # type: ignore[union-attr]
  task = tasks.of(next((x for row in summaries for x in row if x), {}))
  scores = [
    [x.get('honest', x)[search.by][task.primary_column] if x else None for x in row]
    for row in summaries
  ]
  tried = [values for values, _ in ran]
  choice = Choice({}, tried, scores, list(search.seeds), task.primary, refused)
  ranks = [-np.inf if x is None else task.primary.better(x) for x in choice.means]
  best = int(np.argmax(ranks))
  return choice if ranks[best] == -np.inf else choice._replace(values=tried[best])


def in_words(values: Values) -> str:
  """'learning_rate=0.1;server_learning_rate=1', as labels have it."""
  return ';'.join(f'{name}={text_of(value)}' for name, value in values.items())
