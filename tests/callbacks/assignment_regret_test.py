"""The regret of assignments: against float64, in records, tables and files."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.analysis import regret_table
from fesem_jax.core.federated_data import Groups
from fesem_jax.data.corruption import corrupted
from fesem_jax.run.results import saved_client_table
from tests.support import helpers, reference

SIZES, TEST_SIZES = [6, 3, 9, 5, 8, 4], [3, 2, 5, 0, 1, 4]
GROUPS = [0, 1, 0, 1, 0, 1]
WRONG = np.array([0, 1, 1, 1, 0, 0], np.int32)  # Of clients 2 and 5.
CLUSTERED = algorithms.build('oracle', helpers.local(devices=2, chunk=3, hidden=()))


def splits():
  train, test = (
    helpers.federation(s, seed, GROUPS) for seed, s in enumerate((SIZES, TEST_SIZES))
  )
  return dataclasses.replace(train, groups=Groups(WRONG, 2)), test


class Keep(fj.Callback):
  """Keeps the centers of the last evaluation."""

  def on_evaluation(self, event):
    self.centers = event.models.deployed.centers


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run whose assignment is wrong, and its centers."""
  folder, kept = tmp_path_factory.mktemp('run'), Keep()
  callbacks = [fj.callbacks.AssignmentRegret(), kept]
  options = {'rounds': 3, 'eval_every': 2, 'workdir': folder}
  made = fj.simulate(CLUSTERED, *splits(), callbacks=callbacks, **options)
  return folder, made, kept


def reference_losses(kept, data):
  """[M, K] float64: mean loss of each center on each client's examples."""
  models = [reference.from_params(kept.centers, k) for k in (0, 1)]
  found = np.zeros((data.num_clients, 2))
  for i in np.flatnonzero(np.diff(data.offsets)):
    found[i] = [reference.loss_and_gradient(m, *data.client(i))[0] for m in models]
  return found


def predicted(model, x):
  """The label of least loss of one example."""
  losses = [
    reference.loss_and_gradient(model, x[None], np.array([label]))[0]
    for label in range(helpers.CLASSES)
  ]
  return np.argmin(losses)


def test_regret_and_margin_are_those_of_a_float64_reference(run):
  _, made, kept = run
  (train, test), rows = splits(), np.arange(6)
  by_train, by_test = (reference_losses(kept, data) for data in (train, test))
  own = by_train[rows, WRONG]
  regret, margin = own - by_train.min(axis=1), by_train[rows, 1 - WRONG] - own
  weights, tested = np.array(SIZES), np.array(TEST_SIZES) > 0
  test_regret = (by_test[rows, WRONG] - by_test.min(axis=1))[tested]
  found, last = made.history[-1]['regret'], made.history[-1]['margin']
  close = {'rtol': 1e-4, 'atol': 1e-6}
  np.testing.assert_allclose(found['mean'], regret.mean(), **close)
  by_examples = np.average(regret, weights=weights)
  np.testing.assert_allclose(found['by_examples'], by_examples, **close)
  assert found['misassigned'] == (margin < 0).mean() > 0
  np.testing.assert_allclose(found['test_mean'], test_regret.mean(), **close)
  np.testing.assert_allclose(last['mean'], margin.mean(), **close)
  of_clients = made.clients.added
  best = by_train.argmin(axis=1)
  np.testing.assert_array_equal(of_clients['best_cluster'], best)
  np.testing.assert_allclose(of_clients['margin'], margin, **close)
  assert np.isnan(of_clients['test_regret'][~tested]).all()
  # The gain is that of the micro accuracy with the best centers by training loss.
  models = [reference.from_params(kept.centers, k) for k in (0, 1)]
  right = 0
  for i in np.flatnonzero(tested):
    x, y = test.client(i)
    right += sum(
      predicted(models[best[i]], one) == label for one, label in zip(x, y, strict=True)
    )
  want = right / sum(TEST_SIZES) - made.summary['deployed']['micro_accuracy']
  assert found['test_gain'] == pytest.approx(want, abs=1e-6)


def test_evaluations_files_and_summary_have_it_and_results_stay(run):
  folder, made, _ = run
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').open()]
  assert [r['round'] for r in lines if 'regret' in r] == [2, 3]
  summary = json.loads((folder / 'summary.json').read_text())
  assert summary['regret'] == lines[-1]['regret'] == made.summary['regret']
  assert summary['margin'] == lines[-1]['margin']
  read = saved_client_table.read(folder)
  assert list(read.added) == ['best_cluster', 'regret', 'margin', 'test_regret']
  for name, values in made.clients.added.items():
    np.testing.assert_array_equal(read.added[name], values)
    assert read.added[name].dtype == values.dtype
  # Without it, nothing else differs, and the finished run says the same again.
  plain = fj.simulate(CLUSTERED, *splits(), rounds=3, eval_every=2)
  for one, other in zip(made.history, plain.history, strict=True):
    assert 'regret' not in other
    same = {k: v for k, v in other.items() if k != 'seconds'}
    assert {k: one[k] for k in same} == same
  again = fj.simulate(
    CLUSTERED, *splits(), rounds=3, eval_every=2, workdir=folder,
    callbacks=[fj.callbacks.AssignmentRegret()],
  )  # fmt: skip
  assert again.summary == made.summary
  assert again.clients.of('c2') == made.clients.of('c2')


def test_methods_without_centers_have_none():
  callback = fj.callbacks.AssignmentRegret()
  made = fj.simulate(
    algorithms.build('fed_avg', helpers.local(hidden=())), *splits(), rounds=1,
    callbacks=[callback],
  )  # fmt: skip
  assert not {'regret', 'margin'} & (made.history[-1].keys() | made.summary.keys())
  assert made.clients.added is None


def test_tables_have_the_regret_of_methods_that_have_some(run):
  _, made, _ = run
  summaries = {'one': [made.summary, made.summary, None], 'fed_avg': [{'task': None}]}
  (row,) = found = regret_table.rows(summaries)
  regret = made.summary['regret']
  assert row['method'] == 'one'
  assert row['regret'] == (pytest.approx(regret['mean']), 0)
  share = row['clients with a better center (%)'][0]
  assert share == pytest.approx(100 * regret['misassigned'])
  assert row['gain on test data'][0] == pytest.approx(100 * regret['test_gain'])
  text = regret_table.table(found).as_markdown()
  assert f'| {regret["mean"]:.4f} ± 0.0000 |' in text
  assert regret_table.table([]) is None
  # Gains of a figure in the units of the targets are smaller than percentage points.
  of_rmse = {'task': 'regression', 'regret': {'test_gain': -0.00312}, 'margin': {}}
  text = regret_table.table(regret_table.rows({'one': [of_rmse]})).as_markdown()
  assert text.splitlines()[-1].endswith('| -0.0031 |')
  assert 'Bad clients' not in text
  honest = regret_table.rows({'one': [of_rmse | {'honest': {}}]})
  assert 'Bad clients are left out.' in regret_table.table(honest).as_markdown()


def test_columns_that_callbacks_may_not_add(run):
  _, made, _ = run
  table = made.clients
  for name, values in (
    ('regret', np.zeros(6)), ('deployed_x', np.zeros(6)), ('x', np.zeros(5)),
    ('x', ['a'] * 6),
  ):  # fmt: skip
    with pytest.raises(fj.UserError, match=f"column '{name}'"):
      table.with_columns({name: values}, 'Mine.client_columns')


def test_a_run_killed_before_its_summary_has_it_too(run, tmp_path):
  folder, made, _ = run
  shutil.copytree(folder, tmp_path / 'run')
  for name in ('summary.json', 'clients.csv', 'models.npz'):
    (tmp_path / 'run' / name).unlink()
  again = fj.simulate(
    CLUSTERED, *splits(), rounds=3, eval_every=2, workdir=tmp_path / 'run',
    callbacks=[fj.callbacks.AssignmentRegret()],
  )  # fmt: skip
  assert again.summary['regret'] == made.summary['regret']
  for name in ('clients.csv', 'metrics.jsonl'):
    sound = (folder / name).read_bytes()
    assert (tmp_path / 'run' / name).read_bytes() == sound


def test_bad_clients_count_in_the_table_of_clients_alone():
  train, test = splits()
  train = corrupted(train, 'label_flip', 0.4)
  made = fj.simulate(
    CLUSTERED, train, test, rounds=1, callbacks=[fj.callbacks.AssignmentRegret()]
  )
  honest, last, own = ~train.corruption.bad, made.history[-1], made.clients.added
  assert 0 < honest.sum() < 6
  for name in ('regret', 'margin'):
    mean = own[name][honest].mean()
    assert mean != own[name].mean()
    assert last[name]['mean'] == pytest.approx(mean)
  misassigned = (own['best_cluster'] != WRONG)[honest].mean()
  assert last['regret']['misassigned'] == pytest.approx(misassigned)
