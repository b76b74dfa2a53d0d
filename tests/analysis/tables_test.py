"""What tables say of the rounds that they show, and rounds to a target."""

import csv
import dataclasses
import json

import pytest

from fesem_jax.analysis import tables
from fesem_jax.analysis.comparing import Comparison
from fesem_jax.results import curves
from fesem_jax.tasks import CLASSIFICATION


def summary(accuracies, targets=(0.5, 0.9)):
  """The summary of a run with these accuracies after its rounds."""
  history = []
  for number, accuracy in enumerate(accuracies, 1):
    scores = dict.fromkeys(CLASSIFICATION.columns, accuracy)
    history.append({'round': number, 'deployed': scores, 'finetuned': scores})
  return {
    'finetuned': history[-1]['finetuned'], 'deployed': history[-1]['deployed'],
    'clusters': None, 'timing': {'seconds_per_round': 0.5},
    'clients_without_test_examples': 0, 'reports': curves.reports(history),
    'rounds_to_target': curves.rounds_to_targets(history, targets),
  }  # fmt: skip


FOUND = Comparison(
  {
    'fed_avg': [summary([0.25, 0.75, 0.5]), summary([0.5, 0.5, 0.25])],
    'fesem(2)': [summary([0.4, 0.6, 0.95]), None],
    'non_fed': [],
  },
  [],
)


@pytest.mark.parametrize(
  ('report', 'micro', 'said'),
  [
    ('last', '37.5 ± 17.7', 'Metrics are from the last round.'),
    ('best', '62.5 ± 17.7', "Metrics are from each run's best evaluated round"),
    ('mean10', '45.8 ± 5.9', 'Metrics are means over the last ten evaluated rounds'),
  ],
)
def test_tables_show_a_report_and_say_which(report, micro, said, tmp_path):
  found = dataclasses.replace(FOUND, report=report)
  row = tables.as_markdown(found.table).splitlines()[2]
  assert row.startswith(f'| fed_avg | {micro} |')
  found.write(tmp_path)
  for name in ('table.md', 'table.tex'):
    assert said in (tmp_path / name).read_text()
  assert said in str(found)
  (first, *_) = csv.DictReader((tmp_path / 'table.csv').open())
  assert first['report'] == report
  held = json.loads((tmp_path / 'table.json').read_text())
  assert held['report'] == report
  # Differences are of the same figures; the one seed of both counts.
  (other,) = found.differences['deployed']
  want = {'last': -45, 'best': -20, 'mean10': -15}[report]
  assert other['mean'] == pytest.approx(want)


def test_an_agreement_of_zero_has_no_sign():
  run = summary([0.5]) | {'clusters': {'ari': -0.004, 'ami': -0.006}}
  row = tables.as_markdown(tables.over_seeds({'a': [run]})).splitlines()[2]
  assert '| 0.00 | -0.01 |' in row


def test_rounds_to_a_target_are_means_over_seeds_that_reached_it():
  head, _, avg, fesem, none, *rest = tables.as_markdown(FOUND.table).splitlines()
  assert head.endswith('| s/round | rounds to 50 % | rounds to 90 % |')
  # 1 + 0.25 / 0.5 and 1 rounds; never.
  assert avg.endswith('| 1.2 ± 0.4 | not reached |')
  # Of one seed that did not diverge: 1.5, and 2 + 0.3 / 0.35.
  assert fesem.endswith('| 1.5 | 2.9 |')
  assert none.endswith('|  |  |')
  assert 'Rounds to a target are of the deployed micro accuracy.' in rest
  mixed = tables.over_seeds({'a': [summary([0.2, 0.6]), summary([0.1, 0.2])]})
  assert '| 1.8 (1 of 2) | not reached |' in tables.as_markdown(mixed)
  assert '1.8 (1 of 2)' in tables.as_text(mixed)
  assert '1.8 (1 of 2)' in tables.as_csv(mixed)
  without = summary([0.9], targets=())
  assert 'rounds to' not in tables.as_markdown(tables.over_seeds({'a': [without]}))
  # A seed that was run without targets is not one that missed them.
  assert '| 1.8 | not reached |' in tables.as_markdown(
    tables.over_seeds({'a': [summary([0.2, 0.6]), without]})
  )


def test_metrics_of_the_users_own_follow_those_of_the_task():
  def measured(value):
    made = summary([0.5])
    own = {'micro_top_3': value, 'macro_top_3': value / 2}
    return made | {kind: made[kind] | own for kind in ('deployed', 'finetuned')}

  found = tables.over_seeds({'a': [measured(0.25), measured(0.75)], 'b': [None]})
  head, _, first, *_ = tables.as_markdown(found).splitlines()
  names = [cell.strip() for cell in head.strip('|').split('|')]
  cells = [cell.strip() for cell in first.strip('|').split('|')]
  of_first = dict(zip(names, cells, strict=True))
  assert of_first['deployed micro-top_3'] == '0.500 ± 0.354'
  assert of_first['finetuned macro-top_3'] == '0.250 ± 0.177'
  assert 'Micro-top\\_3' in tables.as_latex(found)
  (row, *_) = csv.DictReader(tables.as_csv(found).splitlines())
  assert row['deployed_micro_top_3_mean'] == '0.5'
  assert 'micro-top_3' in tables.as_text(found)


def test_tables_have_the_gigabytes_and_hours_that_are_known():
  def costing(down, up, hours=None):
    costs = {'bytes_down': down, 'bytes_up': up}
    if hours is not None:
      costs |= {'simulated_seconds': 3600 * hours}
    return summary([0.5]) | {'costs': costs}

  found = tables.over_seeds({
    'fed_avg': [costing(2e9, 1e9, 2.0), costing(4e9, 1e9, 3.0)],
    'mine': [costing(None, None)],
    'half': [costing(1e9, 1e9), summary([0.5])],
  })  # fmt: skip
  assert [row['gigabytes'] for row in found] == [4.0, None, None]
  assert [row['simulated_hours'] for row in found] == [2.5, None, None]
  head, _, first, second, *_ = tables.as_markdown(found).splitlines()
  names = [cell.strip() for cell in head.strip('|').split('|')]
  cells = [cell.strip() for cell in first.strip('|').split('|')]
  of_first = dict(zip(names, cells, strict=True))
  assert (of_first['GB'], of_first['simulated h']) == ('4', '2.5')
  assert second.count('|') == head.count('|')
  assert 'GB' in tables.as_text(found)
  (row, *_) = csv.DictReader(tables.as_csv(found).splitlines())
  assert (row['gigabytes'], row['simulated_hours']) == ('4.0', '2.5')
  plain = tables.over_seeds({'fed_avg': [summary([0.5])]})
  assert 'GB' not in tables.as_markdown(plain) + tables.as_csv(plain)


def test_latex_has_fine_tuned_and_deployed_columns_and_says_what_a_deviation_is():
  run = summary([0.5])
  scores = {
    kind: dict.fromkeys(CLASSIFICATION.columns, x)
    for kind, x in (('finetuned', 0.75), ('deployed', 0.25), ('unseen', 0.5))
  }
  found = tables.over_seeds({'fed_avg': [run | scores] * 2, 'b': [run | scores, None]})
  lines = tables.as_latex(found).splitlines()
  assert lines[2].split(' & ')[1:] == [
    r'\multicolumn{4}{c}{fine-tuned}', r'\multicolumn{4}{c}{deployed}',
    r'\multicolumn{4}{c}{unseen clients} \\',
  ]  # fmt: skip
  first = lines[5].removesuffix(r' \\').split(' & ')
  assert first == [
    r'fed\_avg',
    *[r'75.0$\pm$0.0'] * 4,
    *[r'25.0$\pm$0.0'] * 4,
    *[r'50.0$\pm$0.0'] * 4,
  ]
  assert lines[6].startswith('b & 75.0* & ')
  said = [
    'Metrics are mean and sample standard deviation over 1 to 2 seeds.',
    '* without the seeds that diverged.',
  ]
  for sentence in said:
    for text in (tables.as_latex(found), tables.as_text(found)):
      assert sentence in text
    assert sentence.replace('*', '\\*') in tables.as_markdown(found)
  same = tables.over_seeds({'a': [run] * 3})
  assert 'standard deviation over 3 seeds.' in tables.as_latex(same)


def test_methods_with_runs_of_earlier_code_are_marked():
  old = summary([0.5]) | {'earlier_code': ['own:method']}
  found = tables.over_seeds({'own': [old, summary([0.5])], 'fed_avg': [summary([0.5])]})
  told = "1 of 2 runs are of earlier code: the user's file changed after they had begun"
  for text, mark in (
    (tables.as_markdown(found), '| own † |'),
    (tables.as_text(found), 'own †'),
    (tables.as_latex(found), r'own $^\dagger$ &'),
  ):
    assert mark in text
    assert told in text
    assert 'fed_avg †' not in text
  assert told in tables.as_csv(found)
