"""--sweep: the methods of a comparison at values of one flag."""

import csv
import json

import pytest
from absl import flags

from experiments import compare, sweep
from fesem_jax.utils.errors import UserError
from tests.experiments.binaries_test import LOGISTIC
from tests.support.commands import call, flags_of_a_new_process


@pytest.fixture
def swept():
  """The sweep of some values, by the flags of a comparison."""

  def made(text, *given):
    flags.FLAGS(['compare', '--algorithms=fed_avg,fesem(4)', '--num_seeds=2', *given])
    return sweep.parse(text, compare.chosen_configurations)

  with flags_of_a_new_process():
    compare.define_flags()
    yield made


def test_labels_have_the_value_and_what_it_does_not_concern_runs_once(swept):
  found = swept('prox_lambda:0,0.5')
  assert found.labels == {
    'fed_avg': ['fed_avg'] * 2,
    'fesem(4)': ['fesem(4;prox_lambda=0)', 'fesem(4;prox_lambda=0.5)'],
  }
  ran = {
    label: [(c.get('prox_lambda'), c['seed']) for c in configs]
    for label, configs in found.by_label.items()
  }
  assert ran == {
    'fed_avg': [(None, 0), (None, 1)],
    'fesem(4;prox_lambda=0)': [(0, 0), (0, 1)],
    'fesem(4;prox_lambda=0.5)': [(0.5, 0), (0.5, 1)],
  }
  listed = '--algorithms=fed_avg,fed_sgd(learning_rate=2)'
  found = swept('learning_rate:0.1,0.2', listed, '--learning_rate=0.7')
  rates = {
    label: configs[0]['learning_rate'] for label, configs in found.by_label.items()
  }
  assert rates == {
    'fed_sgd(learning_rate=2.0)': 2,
    'fed_avg(learning_rate=0.1)': 0.1,
    'fed_avg(learning_rate=0.2)': 0.2,
  }


def test_no_bad_clients_are_no_attack(swept):
  found = swept('attack_fraction:0,0.2', '--attack=noise', '--algorithms=fed_avg')
  assert [(c['attack'], c['attack_fraction']) for c, _ in found.by_label.values()] == [
    ('', 0),
    ('noise', 0.2),
  ]


@pytest.mark.parametrize(
  ('text', 'subject'),
  [
    ('num_clusters:2,3', 'sweep'),
    ('rounds:1,x', 'rounds'),
    ('ditto_lambda:0.5', 'ditto_lambda'),
  ],
)
def test_flags_and_values_that_cannot_vary_are_refused(swept, text, subject):
  with pytest.raises(UserError, match=subject):
    swept(text)


@pytest.mark.slow
def test_values_are_compared_in_one_table(tmp_path):
  done = call(
    'compare', *LOGISTIC, '--algorithms=fed_avg', '--num_seeds=1', '--workdir=table',
    '--attack=sign_flip', '--sweep=attack_fraction:0,0.3', cwd=tmp_path,
    figures=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'are bad (sign_flip)' in done.stdout
  folder = tmp_path / 'table'
  rows = list(csv.DictReader((folder / 'table.csv').open()))
  labels = ['fed_avg(attack_fraction=0)', 'fed_avg(attack_fraction=0.3)']
  assert [row['method'] for row in rows] == labels
  summary = json.loads((folder / labels[1] / 'seed0/summary.json').read_text())
  want = 100 * summary['honest']['deployed']['micro_accuracy']
  assert float(rows[1]['deployed.micro_accuracy_mean']) == pytest.approx(want)
  assert (folder / 'plots/sweep.png').is_file()
