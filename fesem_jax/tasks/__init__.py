"""Tasks: classification, regression, sequences or several labels.

May import `utils`.
"""

from collections.abc import Mapping
from typing import Any

from fesem_jax.tasks.classification import CLASSIFICATION
from fesem_jax.tasks.multilabel import MULTILABEL
from fesem_jax.tasks.regression import OWN_LOSS, REGRESSION
from fesem_jax.tasks.sequence import SEQUENCE
from fesem_jax.tasks.task import Loss, Metric, Task
from fesem_jax.utils.errors import check

__all__ = [
  'CLASSIFICATION',
  'MULTILABEL',
  'OWN_LOSS',
  'REGRESSION',
  'SEQUENCE',
  'TASKS',
  'Loss',
  'Metric',
  'Task',
  'from_scores',
  'of',
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


def from_scores(scores: Mapping[str, Any]) -> Task:
  """The task whose metrics a record holds; classification if there are none."""
  if next(iter(scores), None) == OWN_LOSS.primary_column:
    return OWN_LOSS
  for task in TASKS.values():
    if set(task.columns) <= scores.keys():
      return task
  return CLASSIFICATION
