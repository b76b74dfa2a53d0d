import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.metrics import accuracy_score, f1_score

from fesem_jax.algorithms import fed_avg, non_fed
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model
from fesem_jax.evaluation import evaluate
from fesem_jax.run.simulation import simulate
from fesem_jax.tasks import CLASSIFICATION, classification
from fesem_jax.tasks.classification import Counts
from fesem_jax.training.cohort import train_cohort
from tests.support import helpers, reference
from tests.support.methods import initial


def counts_of(truths, guesses, classes):
  def tally(labels):
    return np.bincount(labels, minlength=classes)

  counts = Counts(
    np.stack([tally(t[t == g]) for t, g in zip(truths, guesses, strict=True)]),
    np.stack([tally(g) for g in guesses]),
    np.stack([tally(t) for t in truths]),
  )
  sizes = np.array([len(t) for t in truths])
  return evaluate.Totals(sizes, counts, {}, np.zeros(len(sizes)))


def scores_of(totals):
  """Micro accuracy and F1, then the macro ones, and the pooled macro F1."""
  result = evaluate.scores(totals, CLASSIFICATION)
  return [result[name] for name in (*CLASSIFICATION.columns, 'pooled_macro_f1')]


def from_scikit_learn(truths, guesses):
  kept = [(t, g) for t, g in zip(truths, guesses, strict=True) if len(t)]
  size = [len(t) for t, _ in kept]
  accuracy = [accuracy_score(t, g) for t, g in kept]
  f1 = [f1_score(t, g, average='macro', zero_division=0) for t, g in kept]
  return [
    np.average(accuracy, weights=size),
    np.average(f1, weights=size),
    np.mean(accuracy),
    np.mean(f1),
    f1_score(np.concatenate(truths), np.concatenate(guesses), average='macro',
             zero_division=0),
  ]  # fmt: skip


@pytest.mark.parametrize('seed', range(5))
def test_scores_match_scikit_learn(seed):
  rng = np.random.default_rng(seed)
  sizes = [0, 1, 2, 5, 40, 300]
  # Few labels for some clients: labels that occur on one side only.
  truths = [rng.integers(0, rng.integers(1, 8), n) for n in sizes]
  guesses = [
    np.where(rng.random(n) < 0.6, t, rng.integers(0, 8, n))
    for n, t in zip(sizes, truths, strict=True)
  ]
  got = scores_of(counts_of(truths, guesses, 8))
  np.testing.assert_allclose(got, from_scikit_learn(truths, guesses), atol=1e-6)


def test_models_are_measured_on_their_own_clients():
  epochs = 2
  # 300 test examples need several batches; one client has none.
  train = helpers.federation([6, 5, 9, 4], seed=1)
  test = helpers.federation([300, 0, 7, 20], seed=2)
  local = helpers.local(batch_size=4, chunk=2, devices=2)
  algorithm = non_fed(local)
  state, _ = jax.jit(algorithm.step)(
    initial(algorithm, train), train, helpers.everyone(train), jax.random.key(1)
  )
  key = jax.random.key(2)
  measure = jax.jit(
    lambda state, train, test: evaluate.evaluate_clients(
      algorithm.deployed(state, train), local, train, test, key, epochs
    )
  )
  deployed, finetuned, failed = measure(state, train, test)
  assert not failed.any()
  models = algorithm.client_params(state, train, jnp.arange(4))
  tuning = local._replace(schedule=Schedule(4, epochs=epochs))

  @jax.jit
  def tune(models, train):
    everyone = helpers.everyone(train)
    return train_cohort(
      tuning, ClientModels(personal=models), train, everyone, key
    ).params

  apply = jax.jit(local.model.apply)
  for counts, params in ((deployed, models), (finetuned, tune(models, train))):
    truths, guesses = [], []
    for i in range(4):
      x, y = test.client(i)
      client_params = jax.tree.map(lambda p, i=i: np.asarray(p)[i], params)
      truths.append(y)
      guesses.append(np.asarray(apply(client_params, x)).argmax(1) if len(y) else y)
    want = from_scikit_learn(truths, guesses)
    np.testing.assert_allclose(scores_of(counts), want, atol=1e-6)


@pytest.mark.slow
def test_clients_whose_fine_tuning_diverges_are_counted_and_keep_their_model():
  train, test = helpers.federation([6, 5, 7]), helpers.federation([9, 9, 9], seed=1)
  x = np.asarray(train.x).copy()
  x[6:11] = 1e30  # Client 1.
  train = train.__class__(**{**vars(train), 'x': x})
  local = helpers.local()
  algorithm = fed_avg(local)
  state = jax.jit(algorithm.init)(jax.random.key(0), train)
  measure = jax.jit(
    lambda state, train, test: evaluate.evaluate_clients(
      algorithm.deployed(state, train), local, train, test, jax.random.key(0), 3
    )
  )
  deployed, tuned, failed = measure(state, train, test)
  assert failed.tolist() == [False, True, False]
  np.testing.assert_array_equal(tuned.sums.correct[1], deployed.sums.correct[1])
  np.testing.assert_array_equal(tuned.sums.predicted[1], deployed.sums.predicted[1])
  result = simulate(algorithm, train, test, rounds=2)
  assert result.summary['finetuning_failed'] == 1
  assert [r['finetuning_failed'] for r in result.history] == [1, 1]


@pytest.mark.parametrize(('most', 'dtype'), [(255, np.uint8), (256, np.uint16)])
def test_counts_are_as_wide_as_the_largest_client_needs(most, dtype):
  y = np.zeros(most + 3, np.int32)
  data = FederatedData.from_arrays(
    np.zeros((most + 3, 2), np.float32), y, [most, 3], num_classes=2
  )
  model = Model(lambda key: jnp.zeros(2), lambda p, x: p[None] + x)
  params = jnp.array([[1.0, 0.0]] * 2)
  totals = evaluate.measure_chunk(model, params, data, jnp.arange(2))
  counted = totals.examples, totals.sums
  assert {x.dtype for x in jax.tree.leaves(counted)} == {np.dtype(dtype)}
  for counts in totals.sums:
    np.testing.assert_array_equal(counts, [[most, 0], [3, 0]])
  assert evaluate.scores(totals, CLASSIFICATION)['micro_accuracy'] == 1
  assert CLASSIFICATION.num_measured(totals.sums).tolist() == [most, 3]


def test_clients_of_one_training_example_are_fine_tuned_and_those_of_none_are_not():
  train, test = helpers.federation([1, 0, 6]), helpers.federation([7] * 3, seed=1)
  local = helpers.local(epochs=3, chunk=3, hidden=())
  metrics = (('loss', classification.cross_entropy),)
  local = local._replace(model=local.model._replace(metrics=metrics))
  params, key = helpers.first_model(local), jax.random.key(4)
  one = jax.tree.map(lambda p: p[None], params)
  deployed, tuned, failed = evaluate.evaluate_clients(
    ClientModels(one), local, train, test, key, 1
  )
  assert not failed.any()
  start = reference.from_params(one, 0)
  for i in range(3):
    batches = helpers.batches(train, Schedule(4, 1), i, key)
    ends = start, reference.local_sgd(start, batches, 0.1)[0] if batches else start
    for totals, model in zip((deployed, tuned), ends, strict=True):
      loss = 7 * reference.loss_and_gradient(model, *test.client(i))[0]
      np.testing.assert_allclose(totals.metrics['loss'][i], loss, rtol=1e-5)


def test_fine_tuning_changes_the_models_of_a_mixture_and_not_their_weights():
  train, test = helpers.federation([6]), helpers.federation([20], seed=1)
  local = helpers.local(batch_size=0, rate=0.5, hidden=())
  metrics = (('loss', classification.cross_entropy),)
  local = local._replace(model=local.model._replace(metrics=metrics))
  centers = helpers.first_models(local, 2, 3)
  weights = np.array([0.25, 0.75])
  used = ClientModels(centers, mixture=jnp.asarray(weights[None], jnp.float32))
  _, tuned, _ = evaluate.evaluate_clients(
    used, local, train, test, jax.random.key(0), 1
  )

  def of_labels(models, x, y):
    """[K, N, L] probabilities, [K, N] shares of the models in those of the labels."""
    odds = np.exp([x @ kernel + bias for kernel, bias in models])
    each = odds / odds.sum(axis=2, keepdims=True)
    client_params = weights[:, None] * each[:, np.arange(len(y)), y]
    return each, client_params

  (x, y), new = train.client(0), []
  models = [reference.from_params(centers, k)[0] for k in range(2)]
  each, client_params = of_labels(models, x, y)
  for k, (kernel, bias) in enumerate(models):
    error = (
      (client_params[k] / client_params.sum(axis=0))[:, None]
      * (each[k] - np.eye(3)[y])
      / len(y)
    )
    new.append((kernel - 0.5 * x.T @ error, bias - 0.5 * error.sum(axis=0)))
  loss = -np.log(of_labels(new, *test.client(0))[1].sum(axis=0)).sum()
  np.testing.assert_allclose(tuned.metrics['loss'], [loss], rtol=1e-5)


def test_a_client_without_training_examples_takes_no_step_of_weight_decay():
  train, test = helpers.federation([0, 3]), helpers.federation([5, 5], seed=1)
  decay = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))
  local = helpers.local(optimizer=decay, hidden=())
  metrics = (('loss', classification.cross_entropy),)
  local = local._replace(model=local.model._replace(metrics=metrics))
  one = jax.tree.map(lambda p: p[None], helpers.first_model(local))
  deployed, tuned, _ = evaluate.evaluate_clients(
    ClientModels(one), local, train, test, jax.random.key(0), 1
  )
  same = np.asarray(tuned.metrics['loss'] == deployed.metrics['loss'])
  assert same.tolist() == [True, False]


def test_unseen_clients_take_the_model_of_least_training_loss():
  train = helpers.federation([9, 6, 12, 5], seed=1, groups=[0, 1, 0, 1])
  local = helpers.local(chunk=3)
  models = helpers.first_models(local, 3, 3)
  # A fourth model would serve all clients best, but only padding uses it.
  long = local._replace(schedule=Schedule(4, epochs=30))

  @jax.jit
  def trained(models, train):
    first = ClientModels(jax.tree.map(lambda p: p[:1], models))
    everyone, key = helpers.everyone(train), jax.random.key(0)
    return train_cohort(long, first, train, everyone, key).params

  best = trained(models, train)
  models = jax.tree.map(lambda p, b: np.concatenate([p, b[:1]]), models, best)
  row, exists = jnp.array([1, 0, 2, 3]), jnp.array([True, True, True, False])
  choose = jax.jit(
    lambda models, train: evaluate.models_of_unseen(
      ClientModels(models, row), exists, local, train
    )
  )
  used = choose(models, train)
  losses = np.zeros((4, 4))
  for i in range(4):
    for k in range(4):
      model = reference.from_params(models, k)
      losses[i, k] = reference.loss_and_gradient(model, *train.client(i))[0]
  np.testing.assert_array_equal(used.choice, losses[:, :3].argmin(axis=1))
  assert len(np.unique(used.choice)) > 1
  assert 3 in losses.argmin(axis=1)
