"""experiments.corruption: shares of bad clients, its tables, its mistakes."""

import csv
import json

import pytest

from experiments import corruption, tables
from fesem_jax.errors import UserError
from tests.experiments_test import QUICK, call


def summary(accuracy, honest=None):
  """What a run came to, with the accuracy of all and, if given, of honest clients."""
  figures = dict.fromkeys(tables.COLUMNS, accuracy)
  whole = {
    'finetuned': figures, 'deployed': figures, 'clusters': {'ari': 0.5},
    'timing': {'seconds_per_round': 0.5}, 'clients_without_test_examples': 0,
  }  # fmt: skip
  if honest is None:
    return whole
  figures = dict.fromkeys(tables.COLUMNS, honest)
  found = {'finetuned': figures, 'deployed': figures, 'ari': 1.0, 'nmi': 1.0}
  return whole | {'honest': found}


def test_fractions_are_sorted_numbers_below_1():
  assert corruption.parse_fractions(['0.3', '0', '1e-1']) == [0, 0.1, 0.3]
  for wrong in (['a'], [], ['0.1', '0.10'], ['1'], ['-0.1'], ['nan'], ['inf']):
    with pytest.raises(UserError, match=r'--corrupt_fractions=.* must be distinct'):
      corruption.parse_fractions(wrong)


def test_configurations_without_bad_clients_are_ordinary_ones():
  by_label = {'fed_avg': [{'seed': s, 'corrupt': 'noise'} for s in (0, 1)]}
  none = corruption.with_fraction(by_label, 'noise', 0.0)
  some = corruption.with_fraction(by_label, 'noise', 0.2)
  kinds = [
    [(c['corrupt'], c['corrupt_fraction'], c['seed']) for c in each['fed_avg']]
    for each in (none, some)
  ]
  assert kinds == [
    [('none', 0.0, 0), ('none', 0.0, 1)],
    [('noise', 0.2, 0), ('noise', 0.2, 1)],
  ]


def test_tables_over_shares_are_of_honest_clients(tmp_path):
  points = corruption.points_of(0.0, {'fed_avg': [summary(0.9)], 'a|b': [None]})
  points += corruption.points_of(
    0.3, {'fed_avg': [summary(0.1, 0.8), summary(0.1, 0.6), None], 'a|b': []}
  )
  corruption.write(points, 'sign_flip', tmp_path)
  lines = (tmp_path / 'corruption.md').read_text().splitlines()
  assert lines[2] == '| method | 0 % | 30 % |'
  assert lines[4] == '| fed_avg | 90.0 | 70.0 ± 14.1* |'
  assert lines[5] == r'| a\|b | diverged | not run |'
  assert lines[-1] == r'\* without the seeds that diverged.'
  rows = list(csv.DictReader((tmp_path / 'corruption.csv').open()))
  assert [float(r['ari']) for r in rows if r['ari']] == [0.5, 1.0]
  assert float(rows[2]['deployed_macro_f1_mean']) == pytest.approx(70)
  held = json.loads((tmp_path / 'corruption.json').read_text())
  assert held['points'][2]['finetuned_micro_f1'] == pytest.approx([70, 14.142], 1e-3)
  assert corruption.draw(points, 'sign_flip', tmp_path) is None
  assert (tmp_path / 'plots' / 'corruption.png').stat().st_size > 10_000


def test_tables_of_a_comparison_have_columns_of_honest_clients():
  table = tables.over_seeds({'fed_avg': [summary(0.1, 0.8)], 'non_fed': [None]})
  head, _, row, diverged = tables.as_markdown(table).splitlines()
  assert head.startswith('| method | honest finetuned micro-acc |')
  assert row.startswith('| fed_avg | 80.0 | 80.0 |')
  assert '| 10.0 |' in row
  assert diverged.count('diverged') == 16
  text = tables.as_text(table)
  assert 'deployed, honest' in text
  assert '80.0' in text
  assert '10.0' not in text
  assert r'fed\_avg & 80.0' in tables.as_latex(table)
  assert 'honest_deployed_macro_f1_mean' in tables.as_csv(table)
  assert 'honest' not in tables.as_csv(tables.over_seeds({'a': [summary(0.5)]}))


@pytest.mark.slow
def test_shares_are_run_once_and_written_together(tmp_path):
  arguments = [
    *QUICK, '--algorithms=fed_avg,scaffold', '--num_seeds=1', '--workdir=bad',
    '--corrupt_fractions=0,0.3',
  ]  # fmt: skip
  done = call('corruption', *arguments, cwd=tmp_path)
  assert done.returncode == 1  # SCAFFOLD cannot run with bad clients.
  assert '--corrupt=sign_flip is not defined for scaffold' in done.stderr
  rows = list(csv.DictReader((tmp_path / 'bad/corruption.csv').open()))
  assert [(r['method'], r['corrupt_fraction'], r['seeds']) for r in rows] == [
    ('fed_avg', '0.0', '1'), ('scaffold', '0.0', '1'),
    ('fed_avg', '0.3', '1'), ('scaffold', '0.3', '0'),
  ]  # fmt: skip
  run = json.loads(
    (tmp_path / 'bad/fraction0.3/fed_avg/seed0/summary.json').read_text()
  )
  want = 100 * run['honest']['deployed']['micro_accuracy']
  assert float(rows[2]['deployed_micro_accuracy_mean']) == pytest.approx(want)
  assert 'are bad (sign_flip)' in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--corrupt=none'], '--corrupt must say what bad clients do: label_flip'),
    (['--corrupt_fraction=0.1'], 'list shares in --corrupt_fractions instead'),
    (['--corrupt_fractions=0,x'], '--corrupt_fractions=0,x must be distinct numbers'),
    (['--corrupt_fractions=0,0.01'], '--corrupt_fraction=0.01 makes 0 of'),
  ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(arguments, message, tmp_path):
  done = call('corruption', *QUICK, *arguments, cwd=tmp_path)
  assert done.returncode == 1
  assert message in done.stderr
  assert 'Traceback' not in done.stderr
  assert not list(tmp_path.iterdir())
