"""Metrics over all examples of clients and clusters, beside scikit-learn's."""

import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.data import attacks
from fesem_jax.run.callbacks import HostMetrics
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.nights import rest_by_night

metrics = pytest.importorskip('sklearn.metrics')
SIZES = [12, 9, 14, 10, 1, 11]


def run(callback, method='fed_avg', data=None, rounds=2, **options):
  data = helpers.federation(SIZES, groups=[0, 1, 0, 1, 0, 1]) if data is None else data
  model = fj.models.build('logistic', data.example_shape, data.num_classes)
  local = fj.local_training(model, optax.sgd(0.3))
  algorithm = fj.algorithms.build(method, local, **options)
  kept = Kept()
  result = fj.simulate(
    algorithm, data, data, rounds=rounds, finetune_epochs=0,
    callbacks=[kept, callback],
  )  # fmt: skip
  return data, kept, result


class Kept(fj.Callback):
  def on_round(self, event):
    if event.measured is None:
      return
    deployed, self.assignment = event.models, event.assignment
    self.predict = lambda i, x, **of: deployed.predict(x, client=f'c{i}', **of)


def f1(y, predicted):
  return metrics.f1_score(y, predicted, average='macro', zero_division=0)


@pytest.mark.parametrize(
  ('method', 'options'),
  rest_by_night(
    [('fed_avg', {}), ('fesem', {'num_clusters': 2}), ('fed_em', {'num_clusters': 2})]
  ),
)
def test_f1_and_auc_are_those_of_all_examples_together(method, options):
  own = HostMetrics({'f1_sk': f1}, given='predictions')
  data, kept, result = run(own, method, **options)
  pairs = [data.client(i) for i in range(len(SIZES))]
  targets = [y for _, y in pairs]
  predicted = [kept.predict(i, x) for i, (x, _) in enumerate(pairs)]
  whole = f1(np.concatenate(targets), np.concatenate(predicted))
  assert result.summary['f1_sk'] == pytest.approx(whole)
  each = [f1(*pair) for pair in zip(targets, predicted, strict=True)]
  np.testing.assert_allclose(result.clients['f1_sk'], each)
  np.testing.assert_allclose(each, result.clients.deployed_f1, atol=1e-6)
  assert result.summary['f1_sk_macro'] == pytest.approx(np.mean(each))
  if kept.assignment is None:
    assert 'f1_sk_by_cluster' not in result.summary
    return
  for k, found in enumerate(result.summary['f1_sk_by_cluster']):
    of = np.flatnonzero(kept.assignment == k)
    if len(of):
      expected = f1(*(np.concatenate([x[i] for i in of]) for x in (targets, predicted)))
      assert found == pytest.approx(expected)


def test_bad_clients_count_in_the_table_of_clients_alone():
  data = helpers.federation(SIZES)
  bad = attacks.apply(data, 'label_flip', 0.4)
  counts = attacks.honest(bad)
  kept, own = Kept(), HostMetrics({'f1_sk': f1}, given='predictions')
  result = fj.simulate(
    fj.algorithms.build('fesem', helpers.local(hidden=()), num_clusters=2), bad, data,
    rounds=1, finetune_epochs=0, callbacks=[kept, own],
  )  # fmt: skip
  pairs = [data.client(i) for i in np.flatnonzero(counts)]
  predicted = [
    kept.predict(i, data.client(i)[0]) for i in np.flatnonzero(counts)
  ]  # fmt: skip
  whole = f1(np.concatenate([y for _, y in pairs]), np.concatenate(predicted))
  assert result.summary['f1_sk'] == pytest.approx(whole)
  columns = result.clients
  assert np.isfinite(columns['f1_sk']).all()
  mean = columns['f1_sk'][counts].mean()
  assert result.summary['f1_sk_macro'] == pytest.approx(mean)
  assert columns['f1_sk'].mean() != pytest.approx(mean)
  of = [np.flatnonzero((kept.assignment == k) & counts) for k in (0, 1)]
  for found, members in zip(result.summary['f1_sk_by_cluster'], of, strict=True):
    own_pairs = [
      (data.client(i)[1], kept.predict(i, data.client(i)[0])) for i in members
    ]
    if own_pairs:
      expected = f1(*map(np.concatenate, zip(*own_pairs, strict=True)))
      assert found == pytest.approx(expected)


def test_auc_of_two_classes_takes_the_second_and_lacks_where_there_is_one():
  data = helpers.federation(SIZES, classes=2)
  own = HostMetrics({'auc': metrics.roc_auc_score})
  data, kept, result = run(own, data=data)
  x, y = np.asarray(data.x), np.asarray(data.y)
  score = kept.predict(0, x, probabilities=True)[:, 1]
  assert result.summary['auc'] == pytest.approx(metrics.roc_auc_score(y, score))
  column = result.clients['auc']
  assert np.isnan(column[4])  # Its one example is of one class.
  assert result.summary['auc_macro'] == pytest.approx(np.nanmean(column))
  assert np.isfinite(result.history[-1]['auc'])


def test_inputs_of_metrics_are_checked():
  with pytest.raises(UserError, match='given'):
    HostMetrics({}, given='logits')
