"""experiments.sweep: values of one flag, its tables and figure, its mistakes."""

import csv
import json

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import compare, sweep, sweep_tables
from experiments import flags as experiment_flags
from fesem_jax import plots
from fesem_jax.analysis import tables
from fesem_jax.analysis.comparing import Comparison
from fesem_jax.core import sharding
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError
from tests.experiments.binaries_test import LOGISTIC
from tests.support import commands


def summary(accuracy, honest=None):
  """What a run came to, with the accuracy of all and, if given, of honest clients."""
  figures = dict.fromkeys(CLASSIFICATION.columns, accuracy)
  whole = {
    'finetuned': figures, 'deployed': figures, 'clusters': {'ari': 0.5, 'ami': 0.25},
    'timing': {'seconds_per_round': 0.5}, 'clients_without_test_examples': 0,
  }  # fmt: skip
  if honest is None:
    return whole
  figures = dict.fromkeys(CLASSIFICATION.columns, honest)
  found = {
    'finetuned': figures, 'deployed': figures, 'ari': 1.0, 'nmi': 1.0, 'ami': 1.0,
  }  # fmt: skip
  return whole | {'honest': found}


@pytest.fixture
def given(monkeypatch):
  """Calls the binary's main with flags, in this process."""
  with flagsaver.flagsaver(), commands.without_figures():
    if 'dataset' not in flags.FLAGS:
      experiment_flags.define()
    for name in ('algorithms', 'num_seeds', 'vary', 'workdir'):
      if name in flags.FLAGS:
        delattr(flags.FLAGS, name)
    monkeypatch.setattr(experiment_flags, 'define', lambda: None)
    sweep.define_flags()
    monkeypatch.setattr(sharding, 'setup_devices', lambda count: None)

    def call(*arguments):
      flags.FLAGS['vary'].unparse()
      flags.FLAGS(['sweep', *LOGISTIC, *map(str, arguments)])
      sweep.main(['sweep'])

    yield call


def test_values_that_are_numbers_are_sorted(given):
  parse = sweep.parse_vary
  assert parse('corrupt_fraction:0.3,0,1e-1') == ('corrupt_fraction', [0, 0.1, 0.3])
  assert parse('clients_per_round:0,20,5') == ('clients_per_round', [5, 20, 0])
  assert parse('partition:shards,iid') == ('partition', ['shards', 'iid'])
  assert parse('lr_schedule:step:5:0.5')[1] == ['step:5:0.5']
  values = [0.0, 1e-5, 0.25, 1, True, ['64']]
  texts = ['0', '1e-05', '0.25', '1', 'true', '64']
  assert [sweep_tables.text_of(v) for v in values] == texts


def test_each_value_has_its_configurations_and_the_flag_keeps_its_own(given):
  flags.FLAGS(['sweep', '--corrupt=noise', '--learning_rate=0.7'])
  none, some = sweep.configurations('corrupt_fraction', [0.0, 0.2], ['fed_avg'], 2)
  kinds = [
    [(c['corrupt'], c['corrupt_fraction'], c['seed']) for c in each['fed_avg']]
    for each in (none, some)
  ]
  assert kinds == [
    [('none', 0.0, 0), ('none', 0.0, 1)],
    [('noise', 0.2, 0), ('noise', 0.2, 1)],
  ]
  listed = ['fed_avg', 'fed_sgd(learning_rate=2)']
  found = sweep.configurations('learning_rate', [0.1, 0.2], listed, 1)
  rates = [[c['learning_rate'] for (c,) in each.values()] for each in found]
  assert rates == [[2.0, 0.1], [2.0, 0.2]]
  assert flags.FLAGS.learning_rate == 0.7


def test_what_a_value_does_not_concern_runs_once(given, monkeypatch, tmp_path):
  ran = []

  def run(by_label, folder, count):
    ran.append((folder.name, list(by_label)))
    values = {la: [summary(c.get('prox_lambda', 0.5))] for la, (c,) in by_label.items()}
    return Comparison(values, []), {}

  monkeypatch.setattr(compare, 'run_methods', run)
  given('--vary=prox_lambda:0.25,0', '--num_seeds=1', f'--workdir={tmp_path}')
  assert ran == [
    ('prox_lambda=0', ['fed_avg', 'fesem(4)']), ('prox_lambda=0.25', ['fesem(4)']),
  ]  # fmt: skip
  rows = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
  figures = [float(r['deployed_micro_accuracy_mean']) for r in rows]
  assert figures == [50, 0, 50, 25]
  assert [r['value'] for r in rows] == ['0', '0', '0.25', '0.25']


def test_tables_over_values_are_of_honest_clients(tmp_path):
  name = 'corrupt_fraction (noise)'
  points = sweep_tables.points_of(0.0, {'fed_avg': [summary(0.9)], 'a|b': [None]})
  points += sweep_tables.points_of(
    0.3, {'fed_avg': [summary(0.1, 0.8), summary(0.1, 0.6), None], 'a|b': []}
  )
  sweep_tables.write(points, name, tmp_path)
  lines = (tmp_path / 'sweep.md').read_text().splitlines()
  assert lines[0].startswith(
    f'Deployed, honest clients: Micro accuracy (%) by {name}. Metrics are mean'
  )
  assert lines[2] == f'| method | {name} 0 | {name} 0.3 |'
  assert lines[4] == r'| fed_avg | 90.0 | 70.0 ± 14.1\* |'
  assert lines[5] == r'| a\|b | diverged | not run |'
  assert r'| fed_avg | 0.50 | 1.00 ± 0.00\* |' in lines
  assert r'| fed_avg | 0.25 | 1.00 ± 0.00\* |' in lines
  assert lines[-1] == r'\* without the seeds that diverged.'
  rows = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
  assert [float(r['ari_mean']) for r in rows if r['ari_mean']] == [0.5, 1.0]
  assert [float(r['ami_mean']) for r in rows if r['ami_mean']] == [0.25, 1.0]
  assert float(rows[2]['deployed_macro_f1_mean']) == pytest.approx(70)
  said = [(r['report'], r['evaluated_on'], r['clients']) for r in rows]
  assert (said[0], said[2]) == (('last', 'test', 'all'), ('last', 'test', 'honest'))
  held = json.loads((tmp_path / 'sweep.json').read_text())
  assert held['points'][2]['finetuned_micro_f1'] == pytest.approx([70, 14.142], 1e-3)
  assert sweep_tables.draw(points, name, 8, tmp_path) is None
  assert (tmp_path / 'plots' / 'sweep.png').stat().st_size > 10_000


def test_all_clients_are_at_their_number_and_lines_break(monkeypatch, tmp_path):
  drawn = []
  monkeypatch.setattr(plots, 'save', lambda figure, path: drawn.append(figure))
  runs = {5: [summary(0.5)], 10: [None], 0: [summary(0.9), summary(0.7)]}
  points = [
    p for v, each in runs.items() for p in sweep_tables.points_of(v, {'fed_avg': each})
  ]
  sweep_tables.draw(points, 'clients_per_round', 80, tmp_path)
  sweep_tables.draw(points, 'num_clients', 80, tmp_path)
  deployed, _, ari = drawn[0].axes
  (line,) = deployed.lines
  np.testing.assert_allclose(line.get_xdata(), [5, 10, 80])
  np.testing.assert_allclose(line.get_ydata(), [50, np.nan, 80])
  (band,) = deployed.collections
  spread = 100 * np.std([0.9, 0.7], ddof=1)
  tops = band.get_paths()[-1].vertices[:, 1]
  assert tops.max() == pytest.approx(80 + spread)
  assert [t.get_text() for t in deployed.get_xticklabels()] == ['5', '10', 'all']
  assert (deployed.get_xscale(), ari.get_ylim()[1]) == ('log', 1.03)
  np.testing.assert_allclose(drawn[1].axes[0].lines[0].get_xdata(), [5, 10, 0])
  panels = {('Deployed', '%'): {'a': [(1.0, None)] * 3}}
  for places, scale in (([0, 0.1, 0.4], 'linear'), ([0, 0.01, 1], 'symlog')):
    assert plots.by_value(panels, 'x', 'abc', places).axes[0].get_xscale() == scale
  words = plots.by_value(panels, 'x', ['iid', 'shards', 'rotated']).axes[0]
  assert [t.get_text() for t in words.get_xticklabels()] == ['iid', 'shards', 'rotated']


def test_the_figure_says_what_it_is_of(monkeypatch, tmp_path):
  drawn = []
  monkeypatch.setattr(plots, 'save', lambda figure, path: drawn.append(figure))
  run = summary(0.5) | {'evaluated_on': 'validation'}
  runs = {1: {'fed_avg': [run, run], 'a': [run, None]}, 2: {'fed_avg': [run, None]}}
  points = [
    p for v, each in runs.items() for p in sweep_tables.points_of(v, each, 'best')
  ]
  points += sweep_tables.points_of(2, {'a': [None, None]}, 'best')
  sweep_tables.draw(points, 'local_epochs', 8, tmp_path)
  plain = sweep_tables.points_of(1, {'fed_avg': [summary(0.5)]})
  sweep_tables.draw(plain, 'local_epochs', 8, tmp_path)
  titles = [f.legends[0].get_title().get_text().split('\n') for f in drawn]
  assert titles[0][:2] == [
    'best round of each run, validation examples',
    'without the seeds that diverged: a at 1, FedAvg at 2',
  ]
  assert titles[1] == ['']


def test_tables_of_a_comparison_have_columns_of_honest_clients():
  table = tables.over_seeds({'fed_avg': [summary(0.1, 0.8)], 'non_fed': [None]})
  made = tables.scores(table)
  said, _, head, _, row, diverged = made.as_markdown().splitlines()
  assert said.startswith('Metrics are of one seed. Metrics are from the last round.')
  assert head.startswith('| method | deployed, honest micro-acc |')
  assert row.startswith('| fed_avg | 80.0 | 80.0 |')
  assert diverged.count('diverged') == 4
  assert 'deployed, honest' in str(made)
  assert '10.0' not in str(made)
  assert 'FedAvg & 80.0' in made.as_latex()
  head, first, _ = csv.reader(tables.whole(table).as_csv().splitlines())
  cells = dict(zip(head, first, strict=True))
  assert cells['honest_deployed_macro_f1_mean'] == '80.0'
  assert float(cells['deployed_macro_f1_mean']) == 10
  plain = tables.whole(tables.over_seeds({'a': [summary(0.5)]}))
  assert 'honest' not in plain.as_csv()


@pytest.mark.slow
def test_values_are_run_once_and_written_together(given, tmp_path, capsys):
  arguments = [
    '--algorithms=fed_avg,scaffold', '--num_seeds=1', f'--workdir={tmp_path}',
    '--corrupt=sign_flip', '--vary=corrupt_fraction:0,0.3',
  ]  # fmt: skip
  # SCAFFOLD cannot run with bad clients.
  with pytest.raises(UserError, match='scaffold'):
    given(*arguments)
  rows = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
  assert [(r['method'], r['value'], r['seeds']) for r in rows] == [
    ('fed_avg', '0', '1'), ('scaffold', '0', '1'),
    ('fed_avg', '0.3', '1'), ('scaffold', '0.3', '0'),
  ]  # fmt: skip
  path = tmp_path / 'corrupt_fraction=0.3/fed_avg/seed0/summary.json'
  honest = json.loads(path.read_text())['honest']
  want = 100 * honest['deployed']['micro_accuracy']
  assert float(rows[2]['deployed_micro_accuracy_mean']) == pytest.approx(want)
  assert 'are bad (sign_flip)' in capsys.readouterr().out
  before = path.stat().st_mtime_ns
  with pytest.raises(UserError, match='Not all methods ran'):
    given(*arguments)
  assert path.stat().st_mtime_ns == before
  # Where nothing can run, what an earlier command has written stays.
  table = (tmp_path / 'sweep.md').read_text()
  with pytest.raises(UserError, match='learning_rate'):
    given(*arguments, '--learning_rate=0.2')
  assert (tmp_path / 'sweep.md').read_text() == table


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], 'vary'),
    (['--vary=num_clusters:2,3'], 'vary'),
    (['--vary=rounds:1,x'], 'rounds'),
    (['--corrupt=noise', '--vary=corrupt_fraction:0,0.01'], '0.01'),
    (['--vary=clients_per_round:5,13'], 'clients_per_round'),
    (['--vary=learning_rate:0.1,-1'], 'learning_rate'),
    (['--vary=ditto_lambda:0.5'], 'ditto_lambda'),
    (['--algorithms=fesem(2)', '--vary=prox_lambda:0.1,-1'], 'prox_lambda'),
  ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_nothing_is_written(
  arguments, message, given, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=message):
    given(*arguments)
  assert not list(tmp_path.iterdir())
