"""Metrics of models by hand: own ones, empty clients, clients that are new."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model
from fesem_jax.evaluation import evaluate
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.tasks.classification import Counts
from tests.support import helpers

# Of clients of 4, 0 and 1 examples, of which 1, 0 and 1 are right.
COUNTS = Counts(
  np.array([[1, 0], [0, 0], [0, 1]]),
  np.array([[3, 1], [0, 0], [0, 1]]),
  np.array([[2, 2], [0, 0], [0, 1]]),
)
TOTALS = evaluate.Totals(
  np.array([4, 0, 1], np.uint8),
  COUNTS,
  {'margin': np.array([6.0, 0.0, -1.0])},
  loss=np.array([2.0, 0.0, 3.0]),
)


def test_own_metrics_are_means_over_examples_and_over_clients_that_have_any():
  with np.errstate(invalid='raise'):
    metrics = evaluate.client_metrics(TOTALS, CLASSIFICATION)
    result = evaluate.scores(TOTALS, CLASSIFICATION)
  np.testing.assert_array_equal(metrics['margin'], [1.5, np.nan, -1])
  np.testing.assert_array_equal(metrics['accuracy'], [0.25, np.nan, 1])
  means = [
    'micro_loss',
    'macro_loss',
    'micro_margin',
    'macro_margin',
    'pooled_macro_f1',
  ]
  assert list(result) == [*CLASSIFICATION.columns, *means]
  assert result['micro_loss'] == pytest.approx((2 + 3) / 5)
  assert result['macro_loss'] == pytest.approx((0.5 + 3) / 2)
  assert result['micro_margin'] == pytest.approx((6 - 1) / 5)
  assert result['macro_margin'] == pytest.approx((1.5 - 1) / 2)
  assert result['micro_accuracy'] == pytest.approx(2 / 5)
  assert result['macro_accuracy'] == pytest.approx((0.25 + 1) / 2)
  no_examples = jax.tree.map(lambda x: x[1:2], TOTALS)
  result = evaluate.scores(no_examples, CLASSIFICATION)
  assert np.isnan(list(result.values())).all()
  assert len(result) == 9


@pytest.mark.parametrize('sizes', [[300, 0, 100, 101], [3, 257, 1, 0]])
def test_examples_of_several_batches_are_each_measured_once(sizes):
  y = np.concatenate([np.arange(n) % 3 for n in sizes]).astype(np.int32)
  data = FederatedData.from_arrays(
    np.zeros((len(y), 2), np.float32), y, sizes, num_classes=3
  )
  model = Model(
    lambda key: jnp.zeros(3),
    lambda p, x: p[None] + x[:, :1],
    metrics=(('label', lambda z, y: y + 1.0),),
  )
  params = jnp.array([[0.0, 1.0, 0.0]] * 4)
  totals = evaluate.measure_chunk(model, params, data, jnp.arange(4))
  assert totals.examples.tolist() == sizes
  for i, n in enumerate(sizes):
    labels = np.arange(n) % 3
    counts = np.bincount(labels, minlength=3)
    np.testing.assert_array_equal(totals.sums.actual[i], counts)
    np.testing.assert_array_equal(totals.sums.correct[i], counts * [0, 1, 0])
    np.testing.assert_array_equal(totals.sums.predicted[i], [0, n, 0])
    assert float(totals.metrics['label'][i]) == (labels + 1).sum()


def test_unseen_clients_take_the_first_of_equal_models_that_clients_use():
  data, local = helpers.federation([5, 3, 4]), helpers.local()
  one = jax.jit(local.model.init)(jax.random.key(0))
  stack = jax.tree.map(lambda x: jnp.stack([x] * 4), one)
  exists = jnp.array([False, True, True])
  used = ClientModels(stack, jnp.array([0, 2, 3]))
  result = evaluate.models_of_unseen(used, exists, local, data)
  assert (result.choice.tolist(), result.choice.dtype) == ([2] * 3, np.int32)
  assert result.shared is stack
  # One that all share has no users to be counted.
  alone = ClientModels(jax.tree.map(lambda x: x[None], one))
  result = evaluate.models_of_unseen(alone, exists, local, data)
  assert result.choice.tolist() == [0] * 3
