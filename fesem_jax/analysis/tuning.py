"""Values of hyperparameters chosen from a grid, by the mean over seeds."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax import tasks
from fesem_jax.tasks import CLASSIFICATION, Figure
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError, WorkdirError

# Values by the name of what is tuned.
Values = dict[str, Any]

# Kinds of models whose metric may decide -> as in sentences.
KINDS = {'deployed': 'deployed', 'finetuned': 'fine-tuned'}


class Search(NamedTuple):
  """The values, seeds and models of a search.

  Attributes:
    grid: name of each hyperparameter -> its values.
    seeds: of the tuning runs; they must differ from those that are reported.
    by: one of `paired.KINDS`, whose first metric of the task decides.
  """

  grid: Mapping[str, Sequence[Any]]
  seeds: Sequence[int] = range(10_000, 10_003)
  by: str = 'deployed'


class Trial(NamedTuple):
  """The outcome of one point of the grid."""

  values: Values
  scores: list[float | None]  # of each seed, None where the run diverged

  @property
  def mean(self) -> float | None:
    """Over seeds; None where one of them diverged."""
    known = [s for s in self.scores if s is not None]
    return float(np.mean(known)) if len(known) == len(self.scores) else None


class Choice(NamedTuple):
  """The hyperparameters chosen for one method.

  Attributes:
    values: that are chosen; empty where every point diverged with some seed.
    tried: every point of the grid that the method can run with.
    seeds: that each point ran with.
    by: one of `KINDS`.
    figure: what the scores are.
    refused: the other points, and why the method cannot run with them.
    honest: whether the scores are those of honest clients, as some are bad.
  """

  values: Values
  tried: list[Trial]
  seeds: list[int]
  by: str
  figure: Figure = CLASSIFICATION.primary
  refused: tuple[tuple[Values, UserError], ...] = ()
  honest: bool = False

  @property
  def runs(self) -> int:
    """How many runs the search took."""
    return sum(len(trial.scores) for trial in self.tried)

  @property
  def grid(self) -> dict[str, list[Any]]:
    """The values of each hyperparameter that were tried."""
    names = dict.fromkeys(name for trial in self.tried for name in trial.values)
    return {
      name: list(dict.fromkeys(t.values[name] for t in self.tried if name in t.values))
      for name in names
    }

  @property
  def at_edge(self) -> list[str]:
    """Names of chosen values that are the least or the largest of several numbers.

    Zero, which has no smaller value beside it, is no edge.
    """
    names = []
    for name, value in self.values.items():
      grid = self.grid[name]
      numbers = all(isinstance(v, int | float) and type(v) is not bool for v in grid)
      if numbers and len(grid) > 1:
        least = value == min(grid) and value != 0
        if least or value == max(grid):
          names.append(name)
    return names


def points(
  grid: Mapping[str, Sequence[Any]],
  applies: Callable[[Values, str], bool] = lambda values, name: True,
) -> list[Values]:
  """The distinct points of a grid, without the values that do not apply.

  `applies` says of a point and a name whether that hyperparameter has an effect beside
  the point's other values.
  """
  distinct: list[Values] = []
  for combination in itertools.product(*grid.values()):
    whole = dict(zip(grid, combination, strict=True))
    point = {name: value for name, value in whole.items() if applies(whole, name)}
    if point and point not in distinct:
      distinct.append(point)
  return distinct


def search(
  tries: Sequence[Values],
  seeds: Sequence[int],
  run: Callable[[Values, int], Mapping[str, Any] | None],
  by: str = 'deployed',
) -> Choice:
  """The point with the best mean over seeds, the first of equal ones.

  Where some clients are bad, scores are those of the honest ones, as in tables.

  Args:
    tries: see `points`.
    seeds: of the runs; they should not be those that are reported.
    run: (point, seed) -> the summary of a run, None if it diverged; a point that
      diverged with one seed, or raises a `UserError` about it, is not chosen.
    by: which models' first figure of the task decides, one of `KINDS`.

  Raises:
    UserError: without points or seeds, if no point can run, or a `WorkdirError`.
  """
  ran, outcomes, refused = [], [], []
  for point in tries:
    try:
      outcomes.append([run(point, seed) for seed in seeds])
      ran.append(point)
    except WorkdirError:  # Says nothing of the point.
      raise
    except UserError as e:
      refused.append((point, e))
  if not ran:
    raise refused[0][1]
  task = tasks.of(next((s for each in outcomes for s in each if s), {}))
  figure, column = task.primary, task.primary_column
  trials = [
    Trial(point, [None if s is None else s.get('honest', s)[by][column] for s in each])
    for point, each in zip(ran, outcomes, strict=True)
  ]
  means = [-np.inf if t.mean is None else figure.better(t.mean) for t in trials]
  best = int(np.argmax(means))
  values = {} if means[best] == -np.inf else trials[best].values
  honest = any('honest' in s for each in outcomes for s in each if s)
  return Choice(values, trials, list(seeds), by, figure, tuple(refused), honest)


def in_words(values: Values) -> str:
  """'learning_rate=0.1;server_learning_rate=1', as labels have it."""
  return ';'.join(f'{name}={text_of(value)}' for name, value in values.items())


def seeds_as_text(seeds: Iterable[int]) -> str:
  """Seeds as text: '7', '7, 8' or, where they are consecutive, '7 to 9'."""
  listed = list(seeds)
  if len(listed) > 2 and listed == list(range(listed[0], listed[-1] + 1)):
    return f'{listed[0]} to {listed[-1]}'
  return ', '.join(map(str, listed))
