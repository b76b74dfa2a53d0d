"""Several labels for each example: figures of scikit-learn, training in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import expit
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

import fesem_jax as fj
from fesem_jax import algorithms, models
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import MULTILABEL, multilabel
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.nights import rest_by_night
from tests.support.runs import simulate

SIZES = [40, 25, 3, 60]


def outcome(seed=0, labels=3, scale=2.0):
  """Logits and labels of four clients; the last label of client 2 never occurs."""
  rng = np.random.default_rng(seed)
  y = (rng.random((sum(SIZES), labels)) < [0.5, 0.2, 0.1][:labels]).astype(np.int32)
  logits = (scale * rng.normal(size=y.shape) + y).astype(np.float32)
  return logits, y


@functools.partial(jax.jit, static_argnums=3)
def measured(logits, y, weights, labels):
  """Sums over two batches."""
  halves = (slice(30), slice(30, None))
  parts = [(logits[part], y[part], weights[part], labels) for part in halves]
  return MULTILABEL.add(*(MULTILABEL.measure(*part) for part in parts))


def counts_of(logits, y):
  """Sums of clients over two batches each, filled up by examples that are none."""
  result = []
  for first, size in zip(np.cumsum([0, *SIZES]), SIZES, strict=False):
    rows = np.arange(first, first + 60) % len(y)  # Others follow the client's own.
    weights = np.float32(np.arange(60) < size)
    result.append(measured(logits[rows], y[rows], weights, y.shape[1]))
  return jax.tree.map(lambda *x: np.stack(x), *result)


def expected(logits, y):
  guess = (logits > 0).astype(int)
  occurs = np.flatnonzero((guess + y).any(axis=0))
  mixed = [k for k in range(y.shape[1]) if 0 < y[:, k].sum() < len(y)]
  share = np.arcsinh(np.clip(logits, -1e4, 1e4) / np.float32(0.01))
  share = share / np.float32(np.arcsinh(1e6))
  rounded = np.round((share + 1) / 2 * 511)
  return {
    'exact_match': accuracy_score(y, guess),
    'f1_micro': f1_score(y, guess, average='micro', zero_division=0),
    'f1_macro': f1_score(y, guess, average='macro', labels=occurs, zero_division=0),
    'auc': np.mean([roc_auc_score(y[:, k], rounded[:, k]) for k in mixed]),
  }


@pytest.mark.parametrize('labels', [1, 3])
def test_figures_are_those_of_scikit_learn(labels):
  logits, y = outcome(labels=labels)
  logits[:2] *= 1e6  # Beyond the largest that are told apart.
  counts = counts_of(logits, y)
  assert MULTILABEL.num_measured(counts).tolist() == SIZES
  micro, metrics = MULTILABEL.micro(counts), MULTILABEL.by_client(counts)
  if labels == 1:
    truth, guess = y[:40, 0], logits[:40, 0] > 0
    assert metrics['exact_match'][0] == accuracy_score(truth, guess)
    np.testing.assert_allclose(
      metrics['f1_micro'][0], f1_score(truth, guess), rtol=1e-6
    )
    np.testing.assert_allclose(
      metrics['f1_macro'][0], f1_score(truth, guess), rtol=1e-6
    )
  np.testing.assert_allclose(
    micro['auc'],
    np.mean([roc_auc_score(y[:, k], logits[:, k]) for k in range(labels)]),
    atol=2e-3,
  )
  if labels > 1:
    target = expected(logits, y)
    for name, value in target.items():
      np.testing.assert_allclose(micro[name], value, rtol=1e-6, err_msg=name)
    for i, first in enumerate(np.cumsum([0, *SIZES[:-1]])):
      rows = slice(first, first + SIZES[i])
      for name, value in expected(logits[rows], y[rows]).items():
        np.testing.assert_allclose(metrics[name][i], value, rtol=1e-6, err_msg=name)


def test_logits_that_are_too_close_together_for_auc_are_told_of(caplog):
  logits, y = outcome()
  MULTILABEL.micro(counts_of(logits, y))
  assert not caplog.messages
  MULTILABEL.micro(counts_of(0.05 * logits - 4, y))
  assert 'AUC is rough' in caplog.text


def test_clients_without_examples_or_with_one_class_have_no_auc():
  logits, y = outcome()
  y[:] = 1
  metrics = MULTILABEL.by_client(counts_of(logits, y))
  assert np.isnan(metrics['auc']).all()
  assert np.isfinite(metrics['f1_macro']).all()
  nothing = MULTILABEL.measure(logits[:2], y[:2], jnp.zeros(2), 3)
  metrics = MULTILABEL.by_client(jax.tree.map(lambda x: np.asarray(x)[None], nothing))
  assert all(np.isnan(x).all() for x in metrics.values())


def test_the_loss_is_the_mean_binary_cross_entropy():
  logits, y = outcome()
  p = expit(logits.astype(np.float64))
  target = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(axis=1)
  result = multilabel.binary_cross_entropy(logits, y)
  np.testing.assert_allclose(result, target, rtol=1e-5)


def federation(seed=0, clients=4, labels=3):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(40 * clients, 5)).astype(np.float32)
  y = (x[:, :labels] > 0).astype(int)
  return FederatedData.from_arrays(x, y, np.full(clients, 40), task='multilabel')


def logistic(labels=3, **options):
  model = models.build('logistic', (5,), labels, task='multilabel')
  return helpers.local(batch_size=0, epochs=2, **options)._replace(model=model)


def test_training_matches_a_float64_reference():
  train, local = federation(), logistic(devices=2)
  algorithm = algorithms.build('fed_avg', local)
  state = jax.jit(algorithm.init)(jax.random.key(0), train)
  w, b = (np.asarray(state.params['logits'][n][0], float) for n in ('kernel', 'bias'))
  state, info = jax.jit(algorithm.step)(
    state, train, helpers.everyone(train), jax.random.key(1)
  )
  ends, losses = [], []
  for i in range(4):
    x, y = (np.asarray(part, float) for part in train.client(i))
    metrics = [w, b]
    for _ in range(2):
      p = expit(x @ metrics[0] + metrics[1])
      losses.append(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean())
      error = (p - y) / y.size
      metrics = [metrics[0] - 0.1 * x.T @ error, metrics[1] - 0.1 * error.sum(axis=0)]
    ends.append(metrics)
  for j, name in enumerate(('kernel', 'bias')):
    want = np.mean([end[j] for end in ends], axis=0)
    np.testing.assert_allclose(
      state.params['logits'][name][0], want, rtol=1e-4, atol=1e-6
    )
  np.testing.assert_allclose(info.train_loss, np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize(
  ('method', 'options'),
  rest_by_night([('fed_avg', {}), ('fed_em', {'num_clusters': 2})]),
)
def test_runs_report_figures_and_predictions(method, options, tmp_path):
  split = federation()
  local = logistic()._replace(optimizer=optax.sgd(1.0))
  algorithm = algorithms.build(method, local, **options)
  result = simulate(
    algorithm, split, split, rounds=5, progress=False, workdir=tmp_path,
  )  # fmt: skip
  scores = [record['deployed'] for record in result.history if 'deployed' in record]
  first, last = scores[0], result.summary['deployed']
  assert result.summary['task'] == 'multilabel'
  assert last['micro_loss'] < first['micro_loss']
  assert last['micro_auc'] > max(0.7, first['micro_auc'])
  run = fj.load_run(tmp_path, model=local.model)
  guesses, truths = [], []
  for i, name in enumerate(split.info.names):
    x, y = split.client(i)
    guesses.append(run.predict(x, client=name))
    truths.append(y)
    p = run.predict(x, client=name, probabilities=True)
    np.testing.assert_array_equal(p > 0.5, guesses[-1])
  guesses, truths = np.concatenate(guesses), np.concatenate(truths)
  target = accuracy_score(truths, guesses)
  np.testing.assert_allclose(last['micro_exact_match'], target, rtol=1e-6)
  target = f1_score(truths, guesses, average='micro')
  np.testing.assert_allclose(last['micro_f1_micro'], target, rtol=1e-6)


@pytest.mark.parametrize(
  ('y', 'num_labels'),
  [
    (np.array([[0, 2]]), None),
    (np.array([[0.5]]), None),
    (np.zeros((1, 2, 2)), None),
    (np.array([['a']]), None),
    (np.zeros((1, 2)), 3),
  ],
)
def test_what_are_no_labels_is_refused(y, num_labels):
  with pytest.raises(UserError, match='`y`'):
    MULTILABEL.targets(y, '`y`', num_labels)
