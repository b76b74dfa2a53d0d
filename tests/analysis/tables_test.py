"""What tables say of the rounds that they show, and rounds to a target."""

import csv
import dataclasses
import json
import shutil
import subprocess

import pytest

from fesem_jax.analysis import costs_table, tables
from fesem_jax.analysis.comparing import Comparison
from fesem_jax.run.results import curves
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import text_tables
from fesem_jax.utils.errors import UserError


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
  row = tables.scores(found.rows).as_markdown().splitlines()[4]
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
  row = tables.scores(tables.over_seeds({'a': [run]})).as_markdown().splitlines()[4]
  assert '| 0.00 | -0.01 |' in row


def test_rounds_to_a_target_are_means_over_seeds_that_reached_it():
  said, _, head, _, avg, fesem, none = (
    costs_table.of_methods(FOUND.rows).as_markdown().splitlines()
  )
  assert head == (
    '| method | s/round | rounds to 50 % | rounds to seeds | rounds to 90 % | rounds '
    'to seeds |'
  )
  # 1 + 0.25 / 0.5 and 1 rounds; never.
  assert avg.endswith('| 1.2 ± 0.4 | 2 of 2 | not reached | 0 of 2 |')
  # 1.5, and 2 + 0.3 / 0.35; the seed that diverged does not reach it.
  assert fesem.endswith('| 1.5 | 1 of 2 | 2.9 | 1 of 2 |')
  assert none.endswith('|  |  |  |  |')
  assert 'Rounds until the deployed micro accuracy reaches a target' in said
  mixed = tables.over_seeds({'a': [summary([0.2, 0.6]), summary([0.1, 0.2])]})
  assert (
    '| 1.8 | 1 of 2 | not reached | 0 of 2 |'
    in costs_table.of_methods(mixed).as_markdown()
  )
  assert '1.8  1 of 2  not reached  0 of 2' in str(costs_table.of_methods(mixed))
  assert ',1.75,,1 of 2,,,0 of 2' in costs_table.of_methods(mixed).as_csv()
  without = summary([0.9], targets=())
  alone = tables.over_seeds({'a': [without]})
  assert 'rounds to' not in costs_table.of_methods(alone).as_markdown()
  # A seed that was run without targets is not one that missed them.
  some = tables.over_seeds({'a': [summary([0.2, 0.6]), without]})
  assert (
    '| 1.8 | 1 of 1 | not reached | 0 of 1 |'
    in costs_table.of_methods(some).as_markdown()
  )


def test_metrics_of_the_users_own_follow_those_of_the_task():
  def measured(value):
    made = summary([0.5])
    own = {'micro_top_3': value, 'macro_top_3': value / 2}
    return made | {kind: made[kind] | own for kind in ('deployed', 'finetuned')}

  found = tables.over_seeds({'a': [measured(0.25), measured(0.75)], 'b': [None]})
  made = tables.scores(found, ['deployed', 'finetuned'])
  head, _, first, *_ = made.as_markdown().splitlines()[2:]
  names = [cell.strip() for cell in head.strip('|').split('|')]
  cells = [cell.strip() for cell in first.strip('|').split('|')]
  of_first = dict(zip(names, cells, strict=True))
  assert of_first['deployed micro-top_3'] == '0.500 ± 0.354'
  assert of_first['fine-tuned macro-top_3'] == '0.250 ± 0.177'
  assert 'micro-top\\_3' in made.as_latex()
  (row, *_) = csv.DictReader(tables.whole(found).as_csv().splitlines())
  assert row['deployed_micro_top_3_mean'] == '0.5'
  assert 'micro-top_3' in str(made)


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
  head, _, first, second, *_ = (
    costs_table.of_methods(found).as_markdown().splitlines()[2:]
  )
  names = [cell.strip() for cell in head.strip('|').split('|')]
  cells = [cell.strip() for cell in first.strip('|').split('|')]
  of_first = dict(zip(names, cells, strict=True))
  assert of_first['GB'] == '4'
  assert second.count('|') == head.count('|')
  assert 'GB' in str(costs_table.of_methods(found))
  (row, *_) = csv.DictReader(costs_table.of_methods(found).as_csv().splitlines())
  assert row['gigabytes'] == '4.0'
  small = tables.over_seeds({'fed_avg': [costing(2e6, 1e6, 0.02)]})
  columns = {c.key: c.head for c in costs_table.of_methods(small).columns}
  assert columns['gigabytes'] == 'MB'
  (row, *_) = csv.DictReader(costs_table.of_methods(small).as_csv().splitlines())
  assert row['gigabytes'] == '0.003'
  plain = tables.over_seeds({'fed_avg': [summary([0.5])]})
  assert ' GB |' not in costs_table.of_methods(plain).as_markdown()
  assert 'gigabytes' not in costs_table.of_methods(plain).as_csv()


def test_tables_have_the_columns_that_are_asked_for_and_say_what_a_deviation_is():
  run = summary([0.5])
  scores = {
    kind: dict.fromkeys(CLASSIFICATION.columns, x)
    for kind, x in (('finetuned', 0.75), ('deployed', 0.25), ('unseen', 0.5))
  }
  found = tables.over_seeds({'fed_avg': [run | scores] * 2, 'b': [run | scores, None]})
  made = tables.scores(found)
  assert [c.group for c in made.columns] == [
    '',
    *['deployed'] * 4,
    *['unseen clients'] * 4,
  ]
  both = tables.scores(found, ['deployed', 'finetuned'], ['micro_f1'])
  assert [c.key for c in both.columns] == [
    'method', 'deployed_micro_f1', 'finetuned_micro_f1'
  ]  # fmt: skip
  lines = both.as_latex().splitlines()
  assert r'FedAvg & 25.0 \pm 0.0 & 75.0 \pm 0.0 \\' in lines
  assert r'b & 25.0{$^*$} & 75.0{$^*$} \\' in lines
  said = [
    'Metrics are mean and sample standard deviation over 1 to 2 seeds.',
    '* without the seeds that diverged.',
  ]
  for sentence in said:
    for text in (made.as_latex(), str(made)):
      assert sentence in text
    assert sentence.replace('*', '\\*') in made.as_markdown()
  same = tables.scores(tables.over_seeds({'a': [run] * 3}))
  assert 'standard deviation over 3 seeds.' in same.as_latex()
  for asked in ({'columns': ['tuned']}, {'metrics': ['micro_rmse']}):
    with pytest.raises(UserError, match=next(iter(asked)).rstrip('s')):
      tables.scores(found, **asked)


def test_the_best_and_those_that_do_not_differ_from_it_are_marked():
  accuracies = {
    'good': [0.9, 0.91, 0.92], 'near': [0.895, 0.912, 0.91], 'bad': [0.5, 0.52, 0.51],
    'oracle': [0.99, 0.99, 0.99],
  }  # fmt: skip
  runs = {m: [summary([x]) for x in each] for m, each in accuracies.items()}
  found = tables.scores(
    tables.over_seeds(runs, oracle='oracle'), (), ['micro_accuracy']
  )
  # Differences of 0.5, -0.2 and 1 points have p = 0.33.
  assert 'good | **91.0 ± 1.0** |' in found.as_markdown()
  assert 'near | 90.6 ± 0.9° |' in found.as_markdown()
  assert 'bad | 51.0 ± 1.0 |' in found.as_markdown()
  assert 'oracle | 99.0 ± 0.0 |' in found.as_markdown()
  assert 'Bold: best mean of a column. °: not different from it' in found.as_markdown()
  assert '91.0±1.0•' in str(found)
  assert '•: best mean' in str(found)
  assert r'good & \bfseries 91.0 \pm 1.0 \\' in found.as_latex()
  # One seed has no test, and no marks.
  alone = tables.over_seeds({m: each[:1] for m, each in runs.items()})
  assert 'Bold' not in tables.scores(alone).as_markdown()


def test_nothing_is_best_by_a_metric_of_the_users_own():
  def runs(error):
    made = [summary([0.5]), summary([0.5])]
    return [m | {'deployed': m['deployed'] | {'micro_error': error}} for m in made]

  found = tables.over_seeds({'a': runs(0.1), 'b': runs(0.9)})
  assert 'deployed_micro_error' not in found[0]['best'] | found[1]['best']
  assert found[0]['best']['deployed_micro_accuracy'] == 'best'


def test_runs_with_and_without_bad_clients_and_of_validation_share_a_table():
  good, bad = summary([0.9]), summary([0.2])
  scores = {kind: summary([0.5])[kind] for kind in ('deployed', 'finetuned')}
  runs = {
    'clean': [good, summary([0.8])],
    'attacked': [bad | {'honest': scores, 'evaluated_on': 'validation'}] * 2,
  }
  found = tables.over_seeds(runs)
  shown = tables.scores(found)
  assert '| clean | **85.0 ± 7.1** |' in shown.as_markdown()
  assert '| attacked | 50.0 ± 0.0' in shown.as_markdown()
  rows = tables.whole(found).records()
  assert [row['evaluated_on'] for row in rows] == ['test', 'validation']
  said = 'Those of attacked are of validation examples.'
  assert said in shown.caption
  # A method that could not run is measured on neither.
  del runs['clean'][:]
  assert said not in tables.scores(tables.over_seeds(runs)).caption


def test_methods_that_diverged_are_not_among_those_measured_on_test_examples():
  run = summary([0.5]) | {'evaluated_on': 'validation'}
  found = tables.over_seeds({'a': [run, run], 'lost': [None, None]})
  caption = tables.scores(found).caption
  assert 'validation examples, held out of the training split' in caption
  assert 'Those of' not in caption
  rows = tables.whole(found).records()
  assert [row['evaluated_on'] for row in rows] == ['validation', '']


def test_figures_of_clusters_are_of_the_honest_clients_and_validation_is_named():
  scores = {kind: summary([0.5])[kind] for kind in ('deployed', 'finetuned')}
  run = summary([0.5]) | {'clusters': {'ari': 0.2, 'ami': 0.2}, 'evaluated_on': 'v'}
  found = tables.over_seeds(
    {'a': [run | {'honest': scores | {'ari': 1.0, 'ami': 1.0}}]}
  )
  assert found[0]['ari'] == 1.0
  caption = tables.scores(found).caption
  assert 'validation examples, held out of the training split' in caption


def test_markdown_latex_csv_and_json_hold_the_same_numbers(tmp_path):
  runs = {
    m: [summary([x, x - 0.03]), summary([0.8, 0.7])]
    for m, x in (('a', 0.6), ('b', 0.9))
  }
  found = Comparison(runs, [], columns=('deployed', 'finetuned'))
  found.write(tmp_path)
  keys = [f'{k}_{c}' for k in ('deployed', 'finetuned') for c in CLASSIFICATION.columns]
  rows = json.loads((tmp_path / 'table.json').read_text())['methods']
  lines = list(csv.DictReader((tmp_path / 'table.csv').open()))
  shown = (tmp_path / 'table.md').read_text().splitlines()[4:6]
  latex = (tmp_path / 'table.tex').read_text()
  for row, line, text in zip(rows, lines, shown, strict=True):
    numbers = [f'{mean:.1f} ± {std:.1f}' for mean, std in (row[key] for key in keys)]
    written = [[float(line[f'{k}_{part}']) for part in ('mean', 'std')] for k in keys]
    assert written == [row[key] for key in keys]
    cells = [x.strip(' *°') for x in text.strip('|').split('|')]
    assert cells[1:] == numbers
    for number in numbers:
      assert number.replace('±', r'\pm') in latex


@pytest.mark.slow
def test_latex_compiles_without_a_table_that_is_too_wide(tmp_path):
  if shutil.which('pdflatex') is None or not _has_packages():
    pytest.skip('pdflatex with booktabs and siunitx is not installed')
  name = r'_%&#$^\{}<--†'
  runs = {m: [summary([0.6, x]) for x in (0.7, 0.9)] for m in (name, 'fed_avg')}
  runs[name].append(None)
  rates = [{'method': 'a', 'values': {'x': 1}, 'chosen': 'as given ' * 20, 'runs': 0}]
  rates[0]['left_out'] = ['a with rate=100%']
  found = Comparison(runs, rates, columns=('deployed', 'finetuned'), correct='holm')
  found.write(tmp_path)
  (tmp_path / 'page.tex').write_text(
    '\\documentclass{article}\n'
    f'{text_tables.PREAMBLE}\n\\begin{{document}}\\input{{table}}\\end{{document}}\n'
  )
  done = subprocess.run(
    ['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'page'],
    cwd=tmp_path, capture_output=True, timeout=120, check=False,
  )  # fmt: skip
  said = done.stdout.decode(errors='replace')
  assert done.returncode == 0, said
  assert 'Overfull' not in said
  assert (tmp_path / 'page.pdf').stat().st_size > 10_000


def _has_packages():
  found = subprocess.run(['kpsewhich', 'booktabs.sty', 'siunitx.sty'], check=False,
                         capture_output=True)  # fmt: skip
  return found.returncode == 0


def test_clients_that_never_trained_have_columns():
  run = summary([0.5])
  trained = {'trained': 0.25, 'trained_deployed': {'micro_accuracy': 0.9}}
  made = tables.scores(tables.over_seeds({'a': [run | trained], 'b': [run]}))
  cells = dict(zip([c.key for c in made.columns], made.rows[0], strict=True))
  assert cells['trained'].mean == pytest.approx(25)
  assert cells['trained_deployed_micro_accuracy'].mean == pytest.approx(90)
  assert 'trained' not in str(tables.scores(tables.over_seeds({'b': [run]})))
