"""--tune and --sweep: grids, and a comparison with each."""

import csv
import json

import pytest
from absl import flags

from experiments import compare, comparisons
from experiments import flags as experiment_flags
from fesem_jax.utils.errors import UserError
from tests.experiments.binaries_test import (
  LOGISTIC,
  parsed_flags,  # noqa: F401
)
from tests.support.commands import call, flags_of_a_new_process


def test_searches_are_parsed_and_refused(parsed_flags):  # noqa: F811
  parse = comparisons.parse_values
  assert parse('learning_rate:0.01,1') == ('learning_rate', [0.01, 1.0])
  assert parse('prox_mu:0.1') == ('prox_mu', [0.1])
  counts = parse('clients_per_round:1,0.5,0')[1]  # 1.0 would be ambiguous.
  assert list(map(type, counts)) == [int, float, int]
  for wrong in ('learning_rate', 'rate:1', 'seed:1,2', 'learning_rate:', 'rounds:x'):
    with pytest.raises(UserError):
      parse(wrong)
  for wrong in ('learning_rate:0.1,0.1,x', 'rounds:x', 'optimizer:x'):
    flag = wrong.partition(':')[0]
    with pytest.raises(UserError, match=flag):
      parse(wrong, 'sweep')


@pytest.mark.parametrize(
  ('texts', 'grid'),
  [
    (['learning_rate:1,2', 'prox_mu:1'], {'learning_rate': [1, 2], 'prox_mu': [1]}),
    (['learning_rate:1,2', 'learning_rate:3'], {'learning_rate': [3]}),
    # An empty search drops those of a preset.
    (['learning_rate:1', '', 'batch_size:5'], {'batch_size': [5]}),
  ],
)
def test_searches_make_a_grid_and_seeds_that_are_not_reported(
  texts, grid, parsed_flags  # noqa: F811
):  # fmt: skip
  configs = comparisons.configurations(['fed_prox'], {})
  configs['fed_prox']['seed'] = 5
  search = comparisons.parse_search(texts, configs, range(3))
  assert (search.grid, search.seeds) == (grid, [10_005, 10_006, 10_007])
  assert comparisons.parse_search([*texts, ''], configs, range(3)) is None


def test_points_are_products_of_what_a_method_leaves_open(parsed_flags):  # noqa: F811
  labels = [
    'fed_avg', 'fesem(2)', 'fed_opt(server_optimizer=adam)',
    'fed_opt(server_optimizer=adam;server_learning_rate=0.5)',
  ]  # fmt: skip
  configs = comparisons.configurations(labels, {})
  grid = {'learning_rate': [0.1, 0.2], 'server_learning_rate': [0.01, 0.1, 1.0]}
  counts = [len(comparisons.points(label, configs[label], grid)) for label in labels]
  # FeSEM's server takes the mean here, and one label has a server rate of its own.
  assert counts == [2, 2, 6, 2]
  # Where the server optimizer is tuned too, the mean is one point.
  grid = {'server_optimizer': ['mean', 'adam'], 'server_learning_rate': [0.1, 1.0]}
  assert comparisons.points('fesem(2)', configs['fesem(2)'], grid) == [
    {'server_optimizer': 'mean'},
    {'server_optimizer': 'adam', 'server_learning_rate': 0.1},
    {'server_optimizer': 'adam', 'server_learning_rate': 1.0},
  ]
  for label in (labels[0], labels[1], labels[3]):
    with pytest.raises(UserError, match='server_learning_rate'):
      comparisons.parse_search(
        ['server_learning_rate:0.1,1'], {label: configs[label]}, range(1)
      )


def test_tuning_uses_validation_examples_only(tmp_path):
  arguments = (
    '--algorithms=fed_avg,fesem(2)', '--num_seeds=1', '--tune=prox_lambda:0.01,1e30',
    '--tune_seeds=1', '--target=0.3', '--workdir=t',
  )  # fmt: skip
  done = call('compare', *LOGISTIC, *arguments, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  table = (tmp_path / 't/table.md').read_text()
  assert 'rounds to 30 %' in table
  assert 'prox_lambda=0.01 |' in table
  first, *lines = done.stdout.splitlines()  # What runs, then the table.
  assert ' on digits: ' in first
  assert lines[0] == ''
  assert 'At the edge of the grid: fesem(2) prox_lambda=0.01.' in lines
  tuned = json.loads((tmp_path / 't/tune.json').read_text())
  assert list(tuned) == ['fesem(2)']  # FedAvg has no lambda.
  assert tuned['fesem(2)']['chosen'] == {'prox_lambda': 0.01}
  assert tuned['fesem(2)']['tried'][1]['of_seeds'] == [None]  # Diverged.
  run = tmp_path / 't/tune/fesem(2)/prox_lambda=0.01/seed10000'
  assert json.loads((run / 'summary.json').read_text())['evaluated_on'] == 'validation'
  config = json.loads((tmp_path / 't/fesem(2)/seed0/config.json').read_text())
  assert (config['evaluate_on'], config['prox_lambda']) == ('test', 0.01)
  # Each run has a line with --verbose, and finished runs are not repeated.
  before = (run / 'summary.json').stat().st_mtime_ns
  again = call('compare', *LOGISTIC, *arguments, '--verbose', cwd=tmp_path)
  assert (run / 'summary.json').stat().st_mtime_ns == before
  assert sum(line.startswith('[') for line in again.stdout.splitlines()) == 4
  files = ['clients.csv', 'config.json', 'metrics.jsonl', 'summary.json']
  assert sorted(p.name for p in run.iterdir()) == files
  reported = {p.name for p in (tmp_path / 't/fed_avg/seed0').iterdir()}
  assert len(reported - {'checkpoints'}) <= 6


@pytest.fixture
def swept():
  """The labels of a sweep, each with a value of its configuration."""

  def sweep(text, name, *arguments):
    f = flags.FLAGS
    f(['compare', '--algorithms=fed_avg,fesem(4)', *arguments])
    chosen = experiment_flags.chosen_options()
    configs = comparisons.configurations(f.algorithms, chosen)
    swept = comparisons.swept(text, configs)
    return {label: config.get(name) for label, config in swept.items()}

  with flags_of_a_new_process():
    compare.define_flags()
    yield sweep


def test_labels_have_the_value_and_methods_without_the_flag_run_once(swept):
  assert swept('prox_lambda:0,0.5', 'prox_lambda') == {
    'fed_avg': None, 'fesem(4;prox_lambda=0)': 0, 'fesem(4;prox_lambda=0.5)': 0.5,
  }  # fmt: skip
  listed = '--algorithms=fed_avg,fed_sgd(learning_rate=2)', '--learning_rate=0.7'
  rates = swept('learning_rate:0.1,0.2', 'learning_rate', *listed)
  assert sorted(rates.values()) == [0.1, 0.2, 2]
  assert {'fed_avg(learning_rate=0.1)', 'fed_avg(learning_rate=0.2)'} < set(rates)
  bad = swept('attack_fraction:0,0.2', 'attack', '--attack=noise')
  assert bad['fed_avg(attack_fraction=0)'] == ''  # No bad clients are no attack.


@pytest.mark.parametrize(
  ('text', 'subject'),
  [
    ('num_clusters:2,3', 'sweep'),
    ('rounds:1,x', 'rounds'),
    ('ditto_lambda:0.5', 'sweep: ditto_lambda'),
  ],
)
def test_flags_and_values_that_cannot_vary_are_refused(swept, text, subject):
  with pytest.raises(UserError, match=subject):
    swept(text, '')


@pytest.mark.slow
def test_values_are_compared_in_one_table(tmp_path):
  done = call(
    'compare', *LOGISTIC, '--algorithms=fed_avg', '--num_seeds=1', '--workdir=table',
    '--attack=sign_flip', '--sweep=attack_fraction:0,0.3', cwd=tmp_path,
    figures=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  folder = tmp_path / 'table'
  rows = list(csv.DictReader((folder / 'table.csv').open()))
  labels = ['fed_avg(attack_fraction=0)', 'fed_avg(attack_fraction=0.3)']
  assert [row['method'] for row in rows] == labels
  summary = json.loads((folder / labels[1] / 'seed0/summary.json').read_text())
  accuracy = 100 * summary['honest']['deployed']['micro_accuracy']
  assert float(rows[1]['deployed.micro_accuracy_mean']) == pytest.approx(accuracy)
  assert (folder / 'plots/sweep.png').is_file()
