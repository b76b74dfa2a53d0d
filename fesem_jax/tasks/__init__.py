"""Tasks: classification, regression, sequences or several labels.

May import `utils`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fesem_jax.tasks.classification import CLASSIFICATION
from fesem_jax.tasks.multilabel import MULTILABEL
from fesem_jax.tasks.regression import OWN_LOSS, REGRESSION
from fesem_jax.tasks.sequence import SEQUENCE
from fesem_jax.tasks.task import Figure, Loss, Task, columns
from fesem_jax.utils.errors import check

__all__ = [
  'CLASSIFICATION',
  'MULTILABEL',
  'OWN_LOSS',
  'REGRESSION',
  'SEQUENCE',
  'TASKS',
  'Figure',
  'Loss',
  'Task',
  'columns_of',
  'from_scores',
  'of',
  'own_metrics',
  'with_loss',
]

TASKS: Mapping[str, Task] = {
  task.name: task for task in (CLASSIFICATION, REGRESSION, SEQUENCE, MULTILABEL)
}


def of(record: Mapping[str, Any]) -> Task:
  """The task of a summary, classification if it names none; `UserError` on another."""
  name = record.get('task', CLASSIFICATION.name)
  if name == OWN_LOSS.name:
    return OWN_LOSS
  check(name in TASKS, f'task: unknown value {name!r:.30}; expected {", ".join(TASKS)}')
  return TASKS[name]


def with_loss(task: Task, loss: Loss) -> Task:
  """The task whose metrics rank models with a loss; a user's loss ranks regressions."""
  return OWN_LOSS if task is REGRESSION and loss is not REGRESSION.loss else task


def own_metrics(task: Task, scores: Iterable[Mapping[str, Any]]) -> list[str]:
  """Names of `Model.metrics` in the scores of summaries, without the loss."""
  names = dict.fromkeys(column for metrics in scores for column in metrics)
  standard = {*task.columns, 'micro_loss'}
  columns = [c for c in names if c.startswith('micro_') and c not in standard]
  return [column.removeprefix('micro_') for column in columns]


def columns_of(task: Task, metrics: Sequence[str] = ()) -> tuple[str, ...]:
  """The columns of a task, then those of metrics of a user's own."""
  return (*task.columns, *columns(metrics))


def from_scores(scores: Mapping[str, Any]) -> Task:
  """The task whose figures a record holds; classification if there are none."""
  if next(iter(scores), None) == OWN_LOSS.primary_column:
    return OWN_LOSS
  for task in TASKS.values():
    if set(task.columns) <= scores.keys():
      return task
  return CLASSIFICATION
