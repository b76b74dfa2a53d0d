"""Methods tuned and compared from Python, on data in memory."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from scipy import stats

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.analysis import loop
from fesem_jax.utils.errors import Diverged, UserError
from tests.support import helpers

SIZES = [6, 3, 9, 5]


def data(seed=0):
  return tuple(helpers.federation(SIZES, seed=10 + seed + part) for part in (0, 100))


def fed_avg(**_):
  return algorithms.build('fed_avg', helpers.local())


@pytest.fixture
def runs(monkeypatch):
  """Replaces runs: `score(algorithm, seed)` is their accuracy, None if they diverge."""

  def use(score):
    specs = []

    def outcome(spec):
      specs.append(spec)
      try:
        accuracy = score(spec.algorithm, spec.seed)
      except UserError as e:
        return e
      if accuracy is None:
        return Diverged('Round 1: nothing is left.')
      names = 'micro_accuracy', 'macro_accuracy', 'micro_f1', 'macro_f1'
      scores = dict.fromkeys(names, accuracy)
      summary = {
        'rounds': 2, 'deployed': scores, 'finetuned': scores,
        'task': 'classification', 'checks': ['FJ402 by chance'],
        'timing': {'seconds_per_round': 0.1}, 'clients_without_test_examples': 0,
      }  # fmt: skip
      history = [{'round': r, 'deployed': scores} for r in (1, 2)]
      return SimpleNamespace(clients=None, summary=summary, history=history)

    def run_many(runs, runs_at_once, keep, like):
      return [keep(place, outcome(spec)) for place, spec in enumerate(runs)]

    monkeypatch.setattr(loop, 'run_many', run_many)
    return specs

  return use


def test_methods_are_compared_seed_by_seed(runs, tmp_path):
  one, two, three = fed_avg(), fed_avg(), fed_avg()
  scores = {one: [0.5, 0.6, 0.8], two: [0.7, 0.9, 0.9], three: [0.1, None, 0.2]}
  specs = runs(lambda algorithm, seed: scores[algorithm][seed])
  methods = {'one': one, 'two': lambda: two, 'three': three}
  result = fj.compare(
    methods, data, rounds=2, seeds=range(3), workdir=tmp_path, eval_every=4
  )
  assert result.runs['status'].tolist() == ['finished'] * 7 + ['diverged', 'finished']
  row = result.table.numbers.loc['one']
  got = [row[f'deployed.micro_accuracy_{part}'] for part in ('mean', 'std')]
  np.testing.assert_allclose(got, [190 / 3, np.std([50, 60, 80], ddof=1)])
  assert result.differences.attrs['reference'] == 'two'
  interval = stats.ttest_rel([50, 60, 80], [70, 90, 90]).confidence_interval()
  got = result.differences.loc['one', ['difference', 'low', 'high']].tolist()
  np.testing.assert_allclose(got, [-20, *interval], rtol=1e-9)
  assert result.differences.loc['three', 'seeds'] == 2
  # Each seed has its own data and folder, and further options go to `simulate`.
  spec = specs[4]
  assert (spec.algorithm, spec.seed, spec.rounds, spec.eval_every) == (two, 1, 2, 4)
  np.testing.assert_array_equal(spec.train.x, data(1)[0].x)
  np.testing.assert_array_equal(spec.test.x, data(1)[1].x)
  assert spec.workdir == tmp_path / 'two' / 'seed1'
  (row_values, *_) = json.loads((tmp_path / 'table.json').read_text())
  assert row_values['difference_difference'] == pytest.approx(-20)
  # The gaps to an oracle stand beside the differences, unless they are the same.
  for oracle, groups in (('one', ['minus two', 'minus one']), ('two', ['minus two'])):
    with_oracle = dataclasses.replace(result, oracle=oracle)
    heads = dict.fromkeys(with_oracle.table.cells.columns.get_level_values(0))
    assert [head for head in heads if head.startswith('minus')] == groups
  assert (tmp_path / 'table.md').read_text() == result.table.to_markdown()
  with pytest.raises(UserError, match='oracle'):
    fj.compare(methods, data, rounds=1, oracle='told')
  named = fj.compare(methods, data(), rounds=2, seeds=[0, 2], reference='one')
  assert named.differences.index.tolist() == ['two', 'three']


def test_a_method_that_cannot_run_does_not_stop_the_others(runs, caplog):
  good, bad = fed_avg(), fed_avg()

  def score(algorithm, seed):
    if algorithm is bad:
      raise UserError('It needs everyone.')
    return 0.5

  runs(score)
  result = fj.compare({'bad': bad, 'good': good}, data(), rounds=1, seeds=[0, 1])
  assert result.runs['method'].tolist() == ['good', 'good']
  # A rule warns once, of the first run.
  messages = [record.getMessage() for record in caplog.records]
  assert messages == [
    'bad: cannot run: It needs everyone.',
    'good, seed 0: FJ402 by chance',
  ]
  assert str(result).endswith('bad cannot run: It needs everyone.')
  with pytest.raises(UserError, match='bad: It needs everyone'):
    result.check()
  with pytest.raises(UserError, match=r'^It needs everyone'):
    fj.compare({'bad': bad}, data(), rounds=1)
  with pytest.raises(UserError, match='reference'):
    fj.compare({'good': good}, data(), rounds=1, reference='other')


def test_values_are_tuned_on_validation_examples_and_then_used(runs):
  made = {}

  def sgd(rate):
    made.setdefault(fed_avg(), {'rate': rate})
    return list(made)[-1]

  def server(rate, server_rate):
    made.setdefault(fed_avg(), {'rate': rate, 'server_rate': server_rate})
    return list(made)[-1]

  def score(algorithm, seed):
    values = made[algorithm]
    if values['rate'] == 0.1 and seed == 8:
      return None
    return values['rate'] / 10 + values.get('server_rate', 0) / 10

  specs = runs(score)
  grid = {'rate': [0.1, 0.2, 0.05], 'server_rate': [1.0, 3.0, 2.0]}
  methods = {'sgd': sgd, 'server': server}
  search = fj.Search(grid, seeds=[7, 8])
  result = fj.compare(methods, data(), rounds=2, seeds=[0, 1], search=search)
  choices = result.choices
  assert {label: (c.values, len(c.tried)) for label, c in choices.items()} == {
    'sgd': ({'rate': 0.2}, 3),
    'server': ({'rate': 0.2, 'server_rate': 3.0}, 9),
  }
  assert choices['server'].at_edge == ['rate', 'server_rate']
  (train, _), spec = data(), specs[1]
  assert (len(spec.train.y) + len(spec.test.y), spec.seed) == (len(train.y), 8)
  assert spec.eval_every == 0
  reported = [made[spec.algorithm] for spec in specs if spec.seed == 0]
  assert reported == [{'rate': 0.2}, choices['server'].values]
  cells = result.table.cells['', 'settings'].to_dict()
  assert cells == {'sgd': 'rate=0.2', 'server': 'rate=0.2, server_rate=3'}


@pytest.mark.parametrize(('methods', 'options', 'subject'), [
  ({'a': lambda rate: fed_avg()}, {'seeds': [7]}, 'seeds'),
  ({'a': fed_avg}, {'seeds': [3, 3]}, 'seeds'),
  ({'a': lambda: fed_avg()}, {}, 'grid'),
])  # fmt: skip
def test_comparisons_that_do_not_fit_are_refused(methods, options, subject):
  search = fj.Search({'rate': [0.1]}, seeds=[7])
  with pytest.raises(UserError, match=f'^{subject}: '):
    fj.compare(methods, data(), rounds=1, search=search, **options)


def test_a_comparison_runs_and_continues_in_its_workdir(tmp_path):
  local = helpers.local(hidden=())
  methods = {n: algorithms.build(n, local) for n in ('fed_avg', 'fed_prox')}
  options = {
    'rounds': 1, 'seeds': [0, 1], 'workdir': tmp_path, 'finetune_epochs': 0
  }  # fmt: skip
  result = fj.compare(methods, data(), **options)
  assert (tmp_path / 'fed_prox/seed1/summary.json').exists()
  again = fj.compare(methods, data(), **options)
  pandas.testing.assert_frame_equal(again.rounds, result.rounds)
  # The table has what the folder has.
  one = fj.compare({'fed_prox': methods['fed_prox']}, data(), **options)
  assert one.runs['method'].tolist() == ['fed_prox'] * 2 + ['fed_avg'] * 2
  from_folder = fj.Comparison(fj.load_runs(tmp_path))
  pandas.testing.assert_frame_equal(from_folder.rounds, one.rounds)
  pandas.testing.assert_frame_equal(from_folder.clients, one.clients)
  alone = fj.simulate(methods['fed_prox'], *data(), rounds=1, seed=1, finetune_epochs=0)
  row = result.runs.iloc[3]
  want = alone.summary['deployed']['micro_accuracy']
  assert row['deployed.micro_accuracy'] == pytest.approx(want, rel=1e-6)
  assert row['timing.runs_at_once'] == 2
