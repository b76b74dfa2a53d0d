"""Classification: cross entropy, counts and mixtures; figures are in evaluate_test."""

import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from fesem_jax.tasks import CLASSIFICATION, classification
from fesem_jax.tasks.classification import Counts


def test_the_loss_is_the_negative_logarithm_of_the_labels_probability():
  logits = np.random.default_rng(0).normal(0, 2, (5, 3)).astype(np.float32)
  y = np.array([2, 0, 1, 1, 2], np.int32)
  expected = -log_softmax(logits.astype(np.float64), axis=1)[np.arange(5), y]
  np.testing.assert_allclose(
    classification.cross_entropy(logits, y), expected, rtol=1e-5
  )


def test_examples_of_weight_0_do_not_count():
  # Predicted: 1, 0, 1 (the first of two equal logits), 2; the last does not count.
  logits = jnp.array([[0, 2, 1], [3, 2, 1], [0, 4, 4], [0, 1, 2]], jnp.float32)
  y, weights = jnp.array([1, 2, 1, 2]), jnp.array([1.0, 1.0, 1.0, 0.0])
  result = CLASSIFICATION.measure(logits, y, weights, 3)
  assert result.correct.tolist() == [0, 2, 0]
  assert result.predicted.tolist() == [1, 2, 0]
  assert result.actual.tolist() == [0, 2, 1]
  assert {x.dtype for x in result} == {np.dtype(np.int32)}
  twice = CLASSIFICATION.add(result, result)
  assert [x.tolist() for x in twice] == [[0, 4, 0], [2, 4, 0], [0, 4, 2]]


def test_clients_count_by_their_examples_and_not_at_all_without_any():
  # Of 4, 0 and 1 examples.
  counts = Counts(
    np.array([[1, 0, 0], [0, 0, 0], [0, 0, 1]], np.uint8),
    np.array([[2, 2, 0], [0, 0, 0], [0, 0, 1]], np.uint8),
    np.array([[3, 1, 0], [0, 0, 0], [0, 0, 1]], np.uint8),
  )
  assert CLASSIFICATION.num_measured(counts).tolist() == [4, 0, 1]
  metrics = CLASSIFICATION.by_client(counts)
  np.testing.assert_allclose(metrics['accuracy'], [0.25, np.nan, 1])
  # 2 * 1 / (2 + 3) of the first class, 0 of the second; the third does not occur.
  np.testing.assert_allclose(metrics['f1'], [0.2, np.nan, 1])
  micro = CLASSIFICATION.micro(counts)
  np.testing.assert_allclose(micro['accuracy'], 2 / 5)
  np.testing.assert_allclose(micro['f1'], (4 * 0.2 + 1) / 5)
  nothing = CLASSIFICATION.micro(Counts(*(c[1:2] for c in counts)))
  assert np.isnan(list(nothing.values())).all()


def test_figures_are_the_same_of_a_few_clients_at_a_time(monkeypatch):
  correct = np.arange(5)[:, None]  # Of 4 examples of the first of two classes.
  predicted = np.concatenate([correct, 4 - correct], axis=1)
  counts = Counts(
    np.pad(correct, ((0, 0), (0, 1))), predicted, np.repeat([[4, 0]], 5, axis=0)
  )
  monkeypatch.setattr(classification, '_BLOCK', 2)
  result = CLASSIFICATION.by_client(counts)
  np.testing.assert_allclose(result['accuracy'], [0, 1 / 4, 2 / 4, 3 / 4, 1])
  # 2 c / (c + 4) of the first class; the second occurs if any are predicted so.
  np.testing.assert_allclose(result['f1'], [0, 0.4 / 2, 4 / 6 / 2, 6 / 7 / 2, 1])
