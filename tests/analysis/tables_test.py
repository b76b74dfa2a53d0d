"""Tables of methods over seeds, from frames."""

import csv
import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fesem_jax.analysis import tables
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.evaluation import curves
from fesem_jax.run.results.frames import Recorded, joined
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import text_tables
from fesem_jax.utils.errors import UserError


def summary(accuracies, targets=(0.5, 0.9), **more):
  """The summary of a run with these accuracies after its rounds."""
  history = []
  for number, accuracy in enumerate(accuracies, 1):
    scores = dict.fromkeys(CLASSIFICATION.columns, accuracy)
    history.append({'round': number, 'deployed': scores, 'finetuned': scores})
  return {
    'rounds': len(history), 'task': 'classification', **history[-1],
    'timing': {'seconds_per_round': 0.5}, 'clients_without_test_examples': 0,
    'reports': curves.reports(history),
    'rounds_to_target': curves.rounds_to_targets(history, targets), **more,
  }  # fmt: skip


def frames(by_label, clients=None, config=None):
  """Frames of runs: label -> the summary of each seed, None for one that diverged."""
  runs = [
    Recorded(
      label, seed, {'algorithm': label.split('(')[0], **(config or {}).get(label, {})},
      result, [], (clients or {}).get((label, seed)),
      diverged=result is None,
    )
    for label, each in by_label.items()
    for seed, result in enumerate(each)
  ]  # fmt: skip
  return joined(runs, list(by_label))


def table(by_label, **options):
  return Comparison(frames(by_label), **options).table


def cells(result, method):
  """Head -> text of a method's cells."""
  return {head: text for (_, head), text in result.cells.loc[method].items()}


FOUND = frames({
  'fed_avg': [summary([0.25, 0.75, 0.5]), summary([0.5, 0.5, 0.25])],
  'fesem(2)': [summary([0.4, 0.6, 0.95]), None],
})  # fmt: skip


@pytest.mark.parametrize(('report', 'micro', 'difference'), [
    ('last', '37.5 ± 17.7', 45), ('best', '62.5 ± 17.7', 20),
    ('mean10', '45.8 ± 5.9', 15),
])  # fmt: skip
def test_tables_show_a_report_and_say_which(report, micro, difference, tmp_path):
  result = Comparison(FOUND, report=report, reference='fed_avg').table
  row = cells(result, 'fed_avg')
  assert (row['micro-acc (%)'], row['of seeds']) == (micro, '2 of 2')
  row = cells(result, 'fesem(2)')
  # Differences are of the same metrics; the one seed of both counts.
  assert (row['difference'], row['of seeds']) == (f'+{difference}.00', '1 of 2')
  assert '95 % interval' not in row
  result.write(tmp_path)
  for name in ('md', 'tex'):
    assert curves.REPORTS[report] in (tmp_path / f'table.{name}').read_text()
  assert len(result.notes) == 2
  (first, *_) = csv.DictReader((tmp_path / 'table.csv').open())
  (other, *_) = json.loads((tmp_path / 'table.json').read_text())
  name = 'deployed.micro_accuracy_mean'
  want = result.numbers.loc['fed_avg', name]
  assert (float(first[name]), other[name]) == (want, want)
  with pytest.raises(UserError, match='report'):
    tables.reported(FOUND.runs, 'first')


def test_rounds_to_a_target_are_means_over_seeds_that_reached_it():
  result = Comparison(FOUND).table
  # 1 + 0.25 / 0.5 and 1 rounds; never.
  row = cells(result, 'fed_avg')
  assert row['rounds to 50 %'] == '1.2 ± 0.4'
  assert row['rounds to 90 %'] == 'not reached'
  # 1.5, and 2 + 0.3 / 0.35; the seed that diverged does not reach it.
  row = cells(result, 'fesem(2)')
  assert row['rounds to 50 %'] == '1.5 (1 of 2)'
  assert row['rounds to 90 %'] == '2.9 (1 of 2)'


def costing(down, up, seconds):
  costs = {'bytes_down': down, 'bytes_up': up, 'simulated_seconds': seconds}
  return summary([0.5], costs=costs, epsilon=seconds / 1000)


def test_costs_are_unknown_if_a_seed_lacks_them():
  result = table({
    'fed_avg': [costing(2e9, 1e9, 7200), costing(4e9, 1e9, 10800)],
    'half': [costing(1e9, 1e9, 1), summary([0.5])],
  })  # fmt: skip
  row, half = cells(result, 'fed_avg'), cells(result, 'half')
  names = ('s/round', 'GB sent', 'h on devices', 'epsilon')
  assert [row[n] for n in names] == ['0.5', '4', '2.5', '10.8']
  assert [half[n] for n in names] == ['0.5', '', '', '']


def test_the_best_and_those_that_do_not_differ_from_it_are_marked():
  accuracies = {
    'good': [0.9, 0.91, 0.92], 'near': [0.895, 0.912, 0.91], 'bad': [0.5, 0.52, 0.51],
    'oracle': [0.99, 0.99, 0.99],
  }  # fmt: skip
  runs = {m: [summary([x]) for x in each] for m, each in accuracies.items()}
  result = table(runs)
  # Differences of 0.5, -0.2 and 1 points have p = 0.33.
  lines = result.to_markdown()
  assert '| good | **91.0 ± 1.0** |' in lines
  assert '| near | 90.6 ± 0.9° |' in lines
  assert '| bad | 51.0 ± 1.0 |' in lines
  assert '| oracle | 99.0 ± 0.0 |' in lines
  assert '91.0 ± 1.0•' in str(result)
  assert r'\textbf{91.0 $\pm$ 1.0}' in result.to_latex()
  assert '<b>91.0 ± 1.0</b>' in result.to_html()
  assert f'& $-${cells(result, "bad")["difference"][1:]} &' in result.to_latex()
  # One seed has no test, and no marks.
  alone = table({m: each[:1] for m, each in runs.items()})
  assert text_tables.BEST not in str(alone)


def test_holm_leaves_fewer_methods_different():
  noise = np.random.default_rng(0).normal(0, 0.001, (4, 5))
  means = {'a': 0.9, 'b': 0.898, 'c': 0.89, 'd': 0.5}
  values = {m: x + noise[i] for i, (m, x) in enumerate(means.items())}
  runs = frames({m: [summary([v]) for v in x] for m, x in values.items()}).runs
  plain, corrected = (
    tables.marks(runs, tables.score(runs), correct=c) for c in ('none', 'holm')
  )
  p = stats.ttest_rel(values['b'], values['a']).pvalue
  assert ('b' in plain) == (p >= 0.05)
  assert set(plain) <= set(corrected)
  assert 'd' not in corrected


def test_methods_are_compared_over_the_seeds_that_both_finished():
  runs = frames({
    'a': [summary([0.5]), summary([0.6]), None],
    'b': [summary([0.7]), summary([0.9]), summary([0.8])],
    'diverged': [None, None, summary([0.7])],
  }).runs  # fmt: skip
  result = tables.differences(runs)
  assert result.attrs == {'reference': 'b', 'column': 'deployed.micro_accuracy'}
  want = stats.ttest_rel([50, 60], [70, 90])
  row = result.loc['a', ['difference', 'low', 'high', 'p', 'seeds']].tolist()
  interval = want.confidence_interval()
  np.testing.assert_allclose(row, [-25, *interval, want.pvalue, 2], rtol=1e-9)
  row = result.loc['diverged', ['difference', 'low', 'seeds']].tolist()
  np.testing.assert_allclose(row, [-10, np.nan, 1])


def test_the_least_error_is_the_best_and_favors_are_bold():
  def of(*values):
    return [
      summary([0.5]) | {'task': 'regression', 'deployed': {'micro_rmse': v}}
      for v in values
    ]

  result = table({'a': of(0.5, 0.5), 'b': of(0.41, 0.4), 'c': of(0.61, 0.6)},
                reference='a')  # fmt: skip
  assert cells(result, 'b')['difference'] == '-0.0950•'
  assert cells(result, 'c')['difference'] == '+0.1050'
  assert cells(result, 'b')['micro-RMSE'].startswith('0.405')


def test_where_clients_are_bad_the_honest_ones_are_compared():
  def of(value, honest, **more):
    scores = dict.fromkeys(CLASSIFICATION.columns, honest)
    bad = {'deployed': scores, 'finetuned': scores, 'ari': 1.0, 'ami': 0.5}
    return summary([value], honest=bad, clusters={'ari': 0.2, 'ami': 0.2}, **more)

  clean = summary([0.3])
  result = table({'a': [of(0.9, 0.2, evaluated_on='validation')] * 2, 'b': [clean] * 2})
  assert result.cells.columns[0] == ('deployed, honest', 'micro-acc (%)')
  a, b = cells(result, 'a'), cells(result, 'b')
  assert (a['micro-acc (%)'], a['ARI']) == ('20.0 ± 0.0°', '1.00')
  assert b['micro-acc (%)'] == '30.0 ± 0.0•'
  assert a['difference'] == '-10.00'
  assert 'on validation examples (a)' in result.notes[0]


def test_columns_that_are_asked_for_and_metrics_of_the_users_own():
  own = {'micro_top_3': 0.25, 'macro_top_3': 0.5, 'micro_loss': 1.0}
  run = summary([0.5])
  run |= {kind: run[kind] | own for kind in ('deployed', 'finetuned')}
  run |= {'unseen': run['deployed'], 'backdoor_success': 0.1}
  run |= {'server': own | {'clusters': [run['deployed']] * 2}}
  groups = ['deployed', 'unseen clients', 'server test', 'backdoor']
  result = table({'fed_avg': [run, run], 'b': [run, None], 'c': [run, run]})
  assert list(dict.fromkeys(result.cells.columns.get_level_values(0)))[:4] == groups[:4]
  row = cells(result, 'fed_avg')
  assert (row['micro-top_3'], row['success (%)']) == ('0.250 ± 0.000', '10.0')
  # Whether more or less of a metric of a user is better is not known.
  both = table({'b': [run]}, columns=['deployed', 'finetuned'])
  assert list(both.cells.columns.unique(0))[:2] == ['deployed', 'fine-tuned']
  for options, subject in (
    ({'columns': ['tuned']}, 'columns'),
    ({'reference': 'c'}, 'reference'),
  ):
    with pytest.raises(UserError, match=subject):
      _ = Comparison(FOUND, **options).table


def of_clients(*accuracies, **more):
  names = ['x', 'y', 'z', 'v'][: len(accuracies)]
  return pd.DataFrame({'client': names, 'deployed_accuracy': accuracies, **more})


def test_clients_gain_and_lose_within_a_seed():
  lost = np.nan  # Without test examples.
  clients = {
    ('fed_avg', 0): of_clients(0.5, 0.5, 0.5, lost),
    ('fed_avg', 1): of_clients(0.5, 0.6, 0.7, 0.8),
    ('a', 0): of_clients(0.6, 0.5, 0.4, lost),
    ('a', 1): of_clients(0.4, 0.7, 0.6, 0.9),
    ('b', 0): of_clients(0.6, 0.6, 0.4, lost, honest=[True, True, False, True]),
  }
  runs = {'fed_avg': [summary([0.5])] * 2, 'a': [summary([0.5])] * 2,
          'b': [summary([0.5]), None]}  # fmt: skip
  result = Comparison(frames(runs, clients)).table
  names = ('gain', 'equal', 'lose')
  assert [cells(result, 'a')[n] for n in names] == [
    '1.5 ± 0.7',
    '0.5 ± 0.7',
    '1.5 ± 0.7',
  ]
  assert [cells(result, 'b')[n] for n in names] == ['2.0', '0.0', '0.0']
  errors = frames(runs, clients).clients.rename(
    columns={'deployed_accuracy': 'deployed_rmse'}
  )
  result = tables.client_changes(errors, 'fed_avg', 'deployed_rmse')
  assert result.loc['b', ('lose', 'mean')] == 2


def test_settings_that_differ_are_a_column():
  config = {'a': {'rounds': 5, 'rate': 0.1}, 'b(rate=1)': {'rounds': 7, 'rate': 1.0}}
  made = frames({'a': [summary([0.5])], 'b(rate=1)': [summary([0.5])]}, config=config)
  result = Comparison(made).table
  assert [cells(result, m)['settings'] for m in config] == [
    'rounds=5, rate=0.1', 'rounds=7'
  ]  # fmt: skip
  # What a method has by default is left out.
  for values, shown in (
    (['by_examples', 'uniform'], ['', '']),
    (['uniform', 'by_examples'], ['weighting=uniform', 'weighting=by_examples']),
  ):
    config = dict(zip(['fed_avg', 'fesem(2)'], values, strict=True))
    config = {m: {'weighting': value} for m, value in config.items()}
    made = frames({m: [summary([0.5])] for m in config}, config=config)
    result = Comparison(made).table
    assert [cells(result, m).get('settings', '') for m in config] == shown


@pytest.mark.slow
def test_latex_compiles_without_a_table_that_is_too_wide(tmp_path):
  find = ['kpsewhich', 'booktabs.sty']
  if shutil.which('pdflatex') is None or subprocess.run(find, check=False).returncode:
    pytest.skip('pdflatex with booktabs is not installed')
  name = r'_%&#$^\{}<--†|'
  runs = {m: [summary([0.6, x]) for x in (0.7, 0.9)] for m in (name, 'fed_avg')}
  table(runs, columns=['deployed', 'finetuned'], correct='holm').write(tmp_path)
  (tmp_path / 'page.tex').write_text(
    '\\documentclass[twocolumn]{article}\n'
    f'{text_tables.PREAMBLE}\n\\begin{{document}}\\input{{table}}\\end{{document}}\n'
  )
  done = subprocess.run(
    ['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'page'],
    cwd=tmp_path, capture_output=True, timeout=120, check=False,
  )  # fmt: skip
  text = done.stdout.decode(errors='replace')
  assert done.returncode == 0, text
  assert 'Overfull' not in text
