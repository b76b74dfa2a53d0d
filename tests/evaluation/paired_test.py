"""Differences between methods are paired over seeds, with SciPy's interval."""

import math

import numpy as np
import pytest
from scipy import stats

from fesem_jax import plots, tasks
from fesem_jax.analysis import clients_table
from fesem_jax.evaluation import paired
from fesem_jax.utils.errors import UserError


@pytest.mark.parametrize('count', [2, 3, 5, 40])
def test_intervals_are_scipys(count):
  rng = np.random.default_rng(count)
  a, b = rng.normal(90, 3, count), rng.normal(88, 2, count)
  test = stats.ttest_rel(a, b)
  interval = test.confidence_interval()
  found = paired.paired_difference(list(a), list(b))
  want = (np.mean(a - b), interval.low, interval.high, test.pvalue)
  np.testing.assert_allclose(found, want, rtol=1e-12)


def test_figures_near_each_other_keep_their_digits():
  offset = 2.0**30
  found = paired.paired_difference([offset + 1, offset + 2], [offset, offset])
  assert found.mean == 1.5
  # The quantile of one degree of freedom is tan(0.475 pi).
  half = math.tan(0.475 * math.pi) * 0.5
  np.testing.assert_allclose(found[1:3], [1.5 - half, 1.5 + half], rtol=1e-12)


def test_one_pair_and_equal_differences_have_no_interval_and_equal_figures_one_at_0():
  assert paired.paired_difference([3.0], [1.0]) == (2.0, None, None, None)
  assert paired.paired_difference([3.0, 5.0], [1.0, 3.0]) == (2.0, None, None, None)
  assert paired.paired_difference([3.0, 5.0], [3.0, 5.0]) == (0.0, 0.0, 0.0, 1.0)


def test_differences_that_are_equal_but_for_rounding_are_no_evidence():
  # Of 34 test examples: 30 and 27, 28 and 25.
  best, other = ([100 * (n / 34) for n in right] for right in ((30, 28), (27, 25)))
  assert best[0] - other[0] != best[1] - other[1]
  assert paired.paired_difference(best, other)[1:] == (None, None, None)
  marks = paired.best_of({'a': best, 'b': other}, float)
  assert marks == {'a': 'best', 'b': 'equal'}
  runs = {m: [summary(x / 100) for x in xs] for m, xs in (('a', best), ('b', other))}
  table = paired.tables(paired.differences(runs))[0]
  assert '| b | -8.82 |  |  |  | 2' in table.as_markdown()


@pytest.mark.parametrize('count', [1, 2, 5])
def test_holm_is_his_step_down_method(count):
  p = np.random.default_rng(count).uniform(0, 0.2, count)
  # The k-th smallest times those that are left; never below a smaller one's.
  want = [
    min(1, max((count - k) * q for k, q in enumerate(sorted(p)) if q <= own))
    for own in p
  ]
  np.testing.assert_allclose(paired.holm(p), want, rtol=1e-12)


def test_holm_leaves_fewer_methods_different():
  means = {'a': 0.9, 'b': 0.898, 'c': 0.89, 'd': 0.5}
  noise = np.random.default_rng(0).normal(0, 0.001, (4, 5))
  values = {m: list(x + noise[i]) for i, (m, x) in enumerate(means.items())}
  plain = paired.best_of(values, lambda x: x)
  corrected = paired.best_of(values, lambda x: x, 'holm')
  p = stats.ttest_rel(values['b'], values['a']).pvalue
  assert ('b' in plain) == (p >= 0.05)
  assert corrected['a'] == 'best'
  assert set(plain) <= set(corrected)
  assert 'd' not in corrected


def test_what_is_no_number_is_not_the_best():
  nothing = {'a': [np.nan, np.nan], 'b': [np.nan, np.nan]}
  assert paired.best_of(nothing, tasks.MULTILABEL.figures[-1].better) == {}


@pytest.mark.parametrize(('a', 'b'), [([], []), ([1], [1, 2]), ([[1]], [[2]])])
def test_what_is_no_pairs_is_refused(a, b):
  with pytest.raises(UserError, match='paired_difference'):
    paired.paired_difference(a, b)


def summary(deployed, finetuned=0.5, honest=None):
  found = {
    'deployed': {'micro_accuracy': deployed}, 'finetuned': {'micro_accuracy': finetuned}
  }  # fmt: skip
  return found if honest is None else found | {'honest': summary(honest)}


def test_methods_are_compared_over_the_seeds_that_both_finished():
  summaries = {
    'a': [summary(0.5), summary(0.6), None],
    'b': [summary(0.7, 0.25), summary(0.9), summary(0.8)],
    'diverged': [None, None, summary(0.7)],
    'not run': [],
  }
  assert paired.best(summaries) == 'b'
  a, diverged, not_run = paired.against(summaries, 'b')
  assert (a['method'], a['pairs']) == ('a', 2)
  want = stats.ttest_rel([50, 60], [70, 90]).confidence_interval()
  got = [a['mean'], a['low'], a['high']]
  np.testing.assert_allclose(got, [-25, want.low, want.high], rtol=1e-9)
  assert diverged['mean'] == pytest.approx(-10)
  assert (diverged['pairs'], diverged['low'], diverged['high']) == (1, None, None)
  assert (not_run['pairs'], not_run['mean'], not_run['low']) == (0, None, None)
  finetuned = paired.against(summaries, 'b', 'finetuned')[0]
  assert finetuned['mean'] == pytest.approx(12.5)
  assert paired.best({'a': [None], 'b': []}) is None


def test_where_clients_are_bad_the_honest_ones_are_compared():
  summaries = {'a': [summary(0.9, honest=0.2)], 'b': [summary(0.1, honest=0.6)]}
  assert paired.best(summaries) == 'b'
  assert paired.against(summaries, 'b')[0]['mean'] == pytest.approx(-40)


def test_all_that_is_said_of_differences_is_of_the_same_clients_and_examples():
  held = {'names': ['x', 'y'], 'deployed': np.array([0.2, 0.6])}
  own = {'evaluated_on': 'validation', 'of_clients': held}
  summaries = {'fed_avg': [summary(0.9, honest=0.2) | own]}
  summaries['b'] = [summary(0.1, honest=0.6) | own]
  found, said = paired.differences(summaries), ', honest clients, validation examples'
  table, _ = paired.tables(found)
  assert f'micro accuracy{said} minus that of b' in table.caption
  assert said[2:] in plots.forest(found).axes[0].get_xlabel()
  gains = clients_table.table(clients_table.rows(summaries, 'fed_avg'))
  assert f'first metric{said}: means' in gains.caption
  del summaries['b'][0]['evaluated_on']
  assert paired.differences(summaries)['of'] == f'{said} of some methods'
  plain = {'a': [summary(0.9)], 'b': [summary(0.1)]}
  assert paired.differences(plain)['of'] == ''


def test_of_equal_methods_the_first_is_the_best():
  tied = {'a': [summary(0.5)], 'b': [summary(0.75), None], 'c': [summary(0.75)]}
  assert paired.best(tied) == 'b'


def of_rmse(*values):
  return [
    {'task': 'regression'} | {k: {'micro_rmse': v} for k in ('deployed', 'finetuned')}
    for v in values
  ]


def test_the_least_error_is_the_best_and_differences_have_its_unit():
  summaries = {'a': of_rmse(0.5, 0.75), 'b': of_rmse(0.25, 0.25), 'c': of_rmse(1.25)}
  found = paired.differences(summaries)
  assert (found['reference'], found['task']) == ('b', 'regression')
  a, c = found['deployed']
  assert (a['mean'], c['mean']) == (0.375, 1.0)
  table = paired.tables(found | {'of': ', honest clients'})[0]
  lines = table.as_markdown().splitlines()
  assert lines[0].startswith(
    'Deployed micro RMSE, honest clients minus that of b: mean'
  )
  # Half the interval is tan(0.475 pi) / 8.
  assert lines[4].startswith('| a | +0.3750 | -1.2133 | +1.9633 | 0.2 | 2 |')
  assert lines[5] == '| c | +1.0000 |  |  |  | 1 |'
  assert 'honest' not in str(paired.tables(found)[0])
  best = paired.tables(found | {'report': 'best'})[0].caption
  assert 'micro RMSE, best round of each run, minus that of b:' in best


def test_intervals_of_fewer_seeds_say_so():
  summaries = {
    'a': [summary(0.5), summary(0.6), None],
    'b': [summary(0.7), summary(0.6), summary(0.5)],
    'c': [summary(0.8), summary(0.8), summary(0.8)],
    'not run': [],
  }
  deployed, finetuned = (
    [line[:-2] for line in table.as_markdown().splitlines()[4:]]
    for table in paired.tables(paired.differences(summaries))
  )
  assert deployed == [
    '| a | -25.00 | -88.53 | +38.53 | 0.13 | 2',
    '| b | -20.00 | -44.84 | +4.84 | 0.074 | 3',
  ]
  assert finetuned == [
    '| a | +0.00 | +0.00 | +0.00 | 1 | 2', '| b | +0.00 | +0.00 | +0.00 | 1 | 3'
  ]  # fmt: skip


def test_differences_that_favor_a_method_beyond_its_interval_are_bold():
  def lines(**runs):
    found = paired.differences(runs, 'a')
    return paired.tables(found)[0].as_markdown().splitlines()[4:]

  accuracies = {
    'a': [summary(0.5), summary(0.5)],
    'b': [summary(0.61), summary(0.6)],
    'c': [summary(0.41), summary(0.4)],
  }
  better, worse = lines(**accuracies)
  assert better.startswith('| b | **+10.50** | +4.15 | +16.85 |')
  assert worse.startswith('| c | -9.50 | -15.85 | -3.15 |')
  better, worse = lines(a=of_rmse(0.5, 0.5), b=of_rmse(0.41, 0.4), c=of_rmse(0.61, 0.6))
  assert better.startswith('| b | **-0.0950** |')
  assert worse.startswith('| c | +0.1050 |')


def test_a_method_with_fewer_finished_seeds_may_be_the_best():
  summaries = {'a': [summary(0.5), summary(0.75)], 'b': [summary(0.875), None]}
  assert paired.best(summaries) == 'b'


def test_methods_are_compared_with_the_reference_that_is_asked_for():
  summaries = {'a': [summary(0.5)], 'b': [summary(0.75)]}
  found = paired.differences(summaries, 'a')
  assert found['reference'] == 'a'
  assert [(row['method'], row['mean']) for row in found['deployed']] == [('b', 25.0)]


def test_a_reference_is_one_of_the_methods_or_none():
  paired.check_reference('', ['a', 'b'])
  paired.check_reference('b', ['a', 'b'])
  with pytest.raises(UserError, match='reference'):
    paired.check_reference('c', ['a', 'b'])


def test_infinite_differences_are_not_equal_ones():
  found = paired.paired_difference([np.inf, 1.0], [0.0, 1.0])
  assert found.mean == np.inf
  assert found.p is not None
  assert np.isnan(found.p)
