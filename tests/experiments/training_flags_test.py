"""Flags of local training: what they build, what they refuse and what they note."""

import json

import numpy as np
import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

from experiments import comparisons, flags
from experiments import run as experiment
from experiments.build import build_local
from fesem_jax import models
from tests.experiments.binaries_test import LOGISTIC, QUICK, refuses
from tests.support import helpers
from tests.support.commands import call


@pytest.fixture
def parse():
  """Parses flags; gives a configuration and the machine's flags."""
  if 'dataset' not in absl_flags.FLAGS:
    experiment.define_flags()

  @flagsaver.flagsaver
  def parsed(*given):
    absl_flags.FLAGS(['run', *QUICK, *given])
    return experiment.chosen_configuration(), flags.machine()

  return parsed


def local_of(parse, *given):
  """The local training that flags name, for data of six features."""
  config, machine = parse(*given)
  data = helpers.federation([3, 4])
  return build_local(config, models.build('logistic', (6,), 3), data, machine)


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (['--lr_schedule=often'], 'lr_schedule'),
    (['--dp=client'], 'dp'),
    (['--dp_noise_multiplier=1'], 'dp_noise_multiplier'),
    (['--dp=server', '--dp_clip=1', '--algorithm=fed_avg'], 'dp'),
  ],
)
def test_contradictions_are_refused(given, message, parse):
  with refuses(message):
    local_of(parse, *given)


def test_what_clients_keep_is_chosen_by_flags(parse):
  local = local_of(parse, '--optimizer=momentum', '--keep_optimizer_state')
  assert local.keep_optimizer_state
  config, machine = parse('--model=resnet8_bn', '--batch_stats=local')
  data = helpers.federation([3, 4], shape=(8, 8))
  model = models.build('resnet8_bn', (8, 8), 3)
  assert build_local(config, model, data, machine).batch_stats == 'local'


def test_methods_of_a_table_may_have_their_own(parse):
  parse()
  by_label = comparisons.configurations(
    ['fed_avg(optimizer=momentum;momentum=0.5)', 'fed_avg'], {}
  )
  first, second = by_label.values()
  assert (first['optimizer'], first['momentum']) == ('momentum', 0.5)
  assert second['optimizer'] == 'sgd'
  assert second['momentum'] == 0.9


def test_a_run_tells_its_report_and_when_it_reached_a_target(tmp_path):
  given = [*LOGISTIC, '--algorithm=fed_avg', '--rounds=3', '--workdir=w']
  first = call('run', *given, cwd=tmp_path)
  assert first.returncode == 0, first.stderr
  history = [json.loads(s) for s in (tmp_path / 'w/metrics.jsonl').open()]
  values = [r['deployed']['micro_accuracy'] for r in history if 'deployed' in r]
  summary = json.loads((tmp_path / 'w/summary.json').read_text())
  assert summary['reports']['best']['deployed']['micro_accuracy'] == max(values)
  mean = summary['reports']['mean10']['deployed']['micro_accuracy']
  assert mean == pytest.approx(np.mean(values))
  assert summary['global_accuracy'] == values[-1]
  assert 'rounds_to_target' not in summary
  # Another report of a finished run trains nothing.
  more = ['--report=mean10', f'--target={min(values):.3f},0.999']
  again = call('run', *given, *more, cwd=tmp_path)
  assert again.returncode == 0, again.stderr
  assert f' {100 * np.mean(values):.1f} ' in again.stdout
  assert 'over the last ten evaluated rounds' in again.stdout
  assert 'not reached' in again.stdout
  then = json.loads((tmp_path / 'w/summary.json').read_text())
  assert [r['target'] for r in then.pop('rounds_to_target')][1] == 0.999
  assert then == summary
  # Targets of an earlier command are not those of this one.
  assert 'rounds to' not in call('run', *given, cwd=tmp_path).stdout


def test_clients_of_several_models_have_no_global_accuracy(tmp_path):
  given = [*LOGISTIC, '--rounds=1', '--num_clusters=2', '--workdir=w']
  given.append('--target=0.01')
  done = call('run', *given, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  summary = json.loads((tmp_path / 'w/summary.json').read_text())
  assert summary['global_accuracy'] is None
  assert summary['rounds_to_target'][0]['deployed'] == 1.0
