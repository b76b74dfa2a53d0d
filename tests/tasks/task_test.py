"""Metrics of tasks, and the task of a record."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from fesem_jax import tasks
from fesem_jax.tasks import (
  CLASSIFICATION,
  MULTILABEL,
  REGRESSION,
  SEQUENCE,
)
from fesem_jax.utils.errors import UserError

ACCURACY, (RMSE, R2, LOSS) = CLASSIFICATION.primary, REGRESSION.metrics


def test_accuracies_are_shown_in_percent_and_errors_as_they_are():
  assert (ACCURACY.factor, RMSE.factor) == (100, 1)
  assert (ACCURACY.title, RMSE.title) == ('Micro accuracy (%)', 'Micro RMSE')
  assert (ACCURACY.digits, RMSE.digits) == (1, 3)
  assert (ACCURACY.text(0.94321), RMSE.text(0.52345)) == ('94.3%', '0.523')
  assert (ACCURACY.target(0.975), RMSE.target(0.0625)) == ('97.5 %', '0.0625')


def test_a_better_figure_is_larger_if_accuracy_and_smaller_if_error():
  assert (ACCURACY.better(0.75), RMSE.better(0.75)) == (0.75, -0.75)
  assert ACCURACY.better(math.nan) == RMSE.better(math.nan) == -math.inf
  expected = {
    'accuracy': True, 'f1': True, 'rmse': False, 'r2': True, 'loss': False,
    'perplexity': False, 'exact_match': True, 'f1_micro': True, 'f1_macro': True,
    'auc': True,
  }  # fmt: skip
  for task in tasks.TASKS.values():
    for metric in task.metrics:
      assert metric.higher_is_better == expected[metric.name]
      assert metric.percent == (expected[metric.name] and metric.name != 'r2')


def test_the_task_of_a_record_is_named_in_it_or_known_by_its_figures():
  for task in tasks.TASKS.values():
    assert tasks.of({'task': task.name}) is task
    scores = dict.fromkeys(task.columns, 0.5)
    assert tasks.from_scores(scores | {'micro_own': 1.0}) is task
    assert tasks.from_scores(scores) is task
  assert tasks.of({}) is tasks.from_scores({}) is CLASSIFICATION
  with pytest.raises(UserError, match='task'):
    tasks.of({'task': 'ranking'})


def test_predictions_are_the_likeliest_classes_or_the_outputs_themselves():
  logits = np.array([[0.0, 3.0, 1.0, 3.0], [2.0, -1.0, 1.0, 0.0]])
  result = CLASSIFICATION.predict(logits)
  assert (result.tolist(), result.dtype) == ([1, 0], np.int32)
  result = SEQUENCE.predict(logits[None])
  assert (result.tolist(), result.dtype) == ([[1, 0]], np.int32)
  assert REGRESSION.predict(logits) is logits


@pytest.mark.parametrize(('task', 'shown', 'of_one'), [
  (CLASSIFICATION, jnp.exp, functools.partial(softmax, axis=-1)),
  (SEQUENCE, jnp.exp, functools.partial(softmax, axis=-1)),
  (MULTILABEL, MULTILABEL.probabilities, expit),
  (REGRESSION, np.asarray, np.asarray),  # The outputs themselves.
])  # fmt: skip
def test_a_mixture_has_the_weighted_mean_of_the_probabilities(task, shown, of_one):
  shape, shares = (3, 5, 4) if task is SEQUENCE else (5, 3), np.array([0.3, 0.7])
  outputs = np.random.default_rng(1).normal(size=(2, *shape)).astype(np.float32)
  mixed = task.mix(outputs, jnp.log(jnp.asarray(shares)))
  expected = np.tensordot(shares, of_one(outputs.astype(np.float64)), axes=1)
  assert mixed.shape == shape
  atol = 1e-6 if task is REGRESSION else 0.0
  np.testing.assert_allclose(shown(mixed), expected, rtol=1e-5, atol=atol)
