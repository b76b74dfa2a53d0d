"""Sequences: masked cross entropy, accuracy by token, perplexity."""

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, log_loss

from fesem_jax import data
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.evaluation import evaluate
from fesem_jax.tasks import SEQUENCE
from fesem_jax.tasks.sequence import token_cross_entropy
from fesem_jax.utils.errors import UserError


def drawn(seed, count, length=6, tokens=5):
  """Logits [N, S, L] and next tokens [N, S] of sequences of different lengths."""
  rng = np.random.default_rng(seed)
  y = rng.integers(0, tokens, (count, length)).astype(np.int32)
  lengths = rng.integers(1, length + 1, count)
  y[np.arange(length) >= lengths[:, None]] = -1
  return rng.normal(0, 2, (count, length, tokens)).astype(np.float32), y


def test_the_loss_is_the_mean_over_the_tokens_of_a_sequence():
  logits, y = drawn(0, 7)
  y[3] = -1
  expected = [
    np.mean([-log_softmax(row)[t] for row, t in zip(*each, strict=True) if t >= 0])
    if (each[1] >= 0).any()
    else 0.0
    for each in zip(logits.astype(np.float64), y, strict=True)
  ]
  np.testing.assert_allclose(token_cross_entropy(logits, y), expected, rtol=1e-5)
  assert np.isfinite(jax.grad(lambda z: token_cross_entropy(z, y).sum())(logits)).all()


def test_figures_match_scikit_learn_over_the_tokens():
  clients = [drawn(seed, count) for seed, count in enumerate((1, 4, 9))]
  each = [
    SEQUENCE.measure(logits, y, np.ones(len(y), np.float32), 5) for logits, y in clients
  ]
  sums = jax.tree.map(lambda *rows: np.stack(rows), *each)
  sizes = np.array([len(y) for _, y in clients])
  totals = evaluate.Totals(sizes, sums, {}, np.zeros(3))
  metrics = evaluate.client_metrics(totals, SEQUENCE)
  flat = []
  for i, (logits, y) in enumerate(clients):
    kept = y >= 0
    flat.append((logits[kept], y[kept]))
    truth, guess = y[kept], logits[kept].argmax(axis=1)
    np.testing.assert_allclose(metrics['accuracy'][i], accuracy_score(truth, guess))
    chance = np.exp(log_softmax(logits[kept].astype(np.float64), axis=1))
    expected = np.exp(log_loss(truth, chance, labels=range(5)))
    np.testing.assert_allclose(metrics['perplexity'][i], expected, rtol=1e-5)
  logits, truth = map(np.concatenate, zip(*flat, strict=True))
  result = evaluate.scores(totals, SEQUENCE)
  accuracy = accuracy_score(truth, logits.argmax(axis=1))
  np.testing.assert_allclose(result['micro_accuracy'], accuracy)
  chance = np.exp(log_softmax(logits.astype(np.float64), axis=1))
  expected = np.exp(log_loss(truth, chance, labels=range(5)))
  np.testing.assert_allclose(result['micro_perplexity'], expected, rtol=1e-5)


def test_targets_must_be_at_every_position():
  x, y = np.zeros((4, 6)), np.zeros((4, 5), int)
  with pytest.raises(UserError, match='y: has shape'):
    FederatedData.from_arrays(x, y, [4], task='sequence')
  with pytest.raises(UserError, match='y: has shape'):
    data.from_arrays(x, y, task='sequence')


def test_examples_of_weight_0_do_not_count():
  logits, y = drawn(3, 4)
  weights = np.array([1, 0, 1, 0], np.float32)
  some = SEQUENCE.measure(logits, y, weights, 5)
  kept = SEQUENCE.measure(logits[::2], y[::2], np.ones(2, np.float32), 5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), some, kept)
  assert (some.correct.dtype, some.tokens.dtype) == (np.int32, np.int32)
  spoiled = logits.copy()
  spoiled[1::2] = np.nan  # What is computed of padding may be anything.
  again = SEQUENCE.measure(spoiled, y, weights, 5)
  jax.tree.map(np.testing.assert_array_equal, again, some)


def test_tokens_of_all_clients_count_alike():
  # Clients of 1, 0 and 3 tokens, of which 1, 0 and 1 are right.
  counts = SEQUENCE.measure(np.zeros((1, 2, 4)), np.array([[0, -1]]), np.ones(1), 4)
  assert (int(counts.correct), int(counts.tokens)) == (1, 1)
  counts = type(counts)(
    np.array([1, 0, 1]), np.array([1, 0, 3]), np.log([4.0, 1.0, 8.0])
  )
  assert SEQUENCE.num_measured(counts).tolist() == [1, 0, 3]
  metrics, micro = SEQUENCE.by_client(counts), SEQUENCE.micro(counts)
  np.testing.assert_allclose(metrics['accuracy'], [1, np.nan, 1 / 3])
  np.testing.assert_allclose(metrics['perplexity'], [4, np.nan, 2])
  np.testing.assert_allclose(micro['accuracy'], 2 / 4)
  np.testing.assert_allclose(micro['perplexity'], 32**0.25)
  # The client without a token takes no part in any mean, and has no figure.
  totals = evaluate.Totals(
    np.array([1, 1, 1]), counts, {'own': np.array([2.0, 0, 4])}, np.log([4.0, 1.0, 2.0])
  )
  result = evaluate.scores(totals, SEQUENCE)
  for kind in ('micro', 'macro'):
    np.testing.assert_allclose(result[f'{kind}_loss'], np.log(8) / 2)
    np.testing.assert_allclose(result[f'{kind}_own'], 3)
  np.testing.assert_allclose(
    evaluate.client_metrics(totals, SEQUENCE)['own'], [2, np.nan, 4]
  )


@pytest.mark.parametrize('y', [[1, 2], [[0.5, 1]], [[-2, 1]], [[0, 7]]])
def test_tokens_that_do_not_fit_are_refused(y):
  with pytest.raises(UserError, match=r'^y: '):
    SEQUENCE.targets(y, 'y', 5)
