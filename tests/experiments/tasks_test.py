"""Tasks from the command line: every binary follows their figures."""

import json
import re

import pytest

from tests.support.commands import call

FLAGS = (
  '--dataset=synthetic_linear(groups=2)', '--task=regression', '--num_clients=10',
  '--examples_per_client=8', '--model=logistic', '--learning_rate=0.0001',
  '--rounds=2', '--batch_size=0', '--local_epochs=1',
)  # fmt: skip


def test_a_regression_is_inspected_converted_and_trained_on(tmp_path):
  data = [f for f in FLAGS if f.split('=')[0] not in (
    '--model', '--learning_rate', '--rounds', '--batch_size', '--local_epochs',
  )]  # fmt: skip
  made = call('data', *data, '--output=d', '--plots=p', cwd=tmp_path)
  assert made.returncode == 0, made.stderr
  assert 'targets, min' in made.stdout
  assert (tmp_path / 'p/clients.png').exists()
  run = ('--dataset=saved(d)', '--model=logistic', '--rounds=2', '--workdir=r')
  more = ('--report=best', '--target=1e6,1e-6')
  again = call(
    'run', '--algorithm=fed_avg', '--learning_rate=1e-4', *run, *more, cwd=tmp_path
  )
  assert again.returncode == 0, again.stderr
  assert 'micro-RMSE' in again.stdout
  # The lowest error is the best, and a target is reached from above.
  assert re.search(
    r'rounds to 1e\+06 rounds to 1e-06\n.* 1\.0 +not reached', again.stdout
  )
  summary = json.loads((tmp_path / 'r/summary.json').read_text())
  lines = (tmp_path / 'r/metrics.jsonl').read_text().splitlines()
  errors = [json.loads(line)['deployed']['micro_rmse'] for line in lines]
  assert summary['reports']['best']['deployed']['micro_rmse'] == min(errors)
  assert summary['global_rmse'] == errors[-1]


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--dataset=digits', '--task=regression'], 'y: '),
    (['--dataset=diabetes', '--partition=dirichlet'],
     '--partition: dirichlet'),
    (['--dataset=diabetes', '--task=classification'], 'y: labels'),
    (['--dataset=diabetes', '--attack=label_flip', '--attack_fraction=0.2'],
     'attack: needs classes'),
  ],
)  # fmt: skip
def test_what_a_task_does_not_have_is_one_sentence(flags, message, tmp_path):
  made = call('run', '--algorithm=fed_avg', '--model=logistic', *flags, cwd=tmp_path)
  assert made.returncode == 1
  assert message in made.stderr
  assert made.stderr.count('\n') <= 2
