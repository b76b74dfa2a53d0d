"""What flags ask callbacks for, and what a run says that cannot do it."""

import pytest

from fesem_jax.analysis import report
from fesem_jax.utils import progress_lines
from fesem_jax.utils.progress_display import Display
from tests.support.commands import call

QUICK = (
  '--dataset=synthetic_linear', '--num_clients=6', '--examples_per_client=8',
  '--partition_groups=2', '--model=logistic', '--batch_size=4', '--num_clusters=2',
  '--rounds=2', '--workdir=run',
)  # fmt: skip


ONE_MODEL = *(f for f in QUICK if 'num_clusters' not in f), '--algorithm=fed_avg'


def said(folder, *args, flags=QUICK):
  done = call('run', *flags, *args, cwd=folder)
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.nightly
def test_a_finished_run_says_what_it_has_not_recorded(tmp_path):
  assert 'Note: --' not in said(tmp_path)
  watched = ('--regret', '--client_metrics_every=3')
  late = said(tmp_path, *watched)
  assert 'Note: --regret has no effect: all 2 rounds were already done; raise' in late
  assert '--client_metrics_every=3 recorded no round: the run has only 2; lower' in late
  late = said(tmp_path, '--client_metrics_every=1')
  assert '--client_metrics_every=1 has no effect: all 2 rounds were already' in late
  assert 'Note: --' not in said(tmp_path, *watched, '--rounds=3')
  assert 'Note: --' not in said(tmp_path, *watched, '--rounds=3')


def test_without_centers_regret_has_no_effect(tmp_path):
  out = said(tmp_path, '--regret', flags=ONE_MODEL)
  assert 'Note: --regret has no effect: clients of fed_avg' in out


@pytest.mark.parametrize('quiet', [True, False])
def test_quiet_shows_no_progress_of_the_report(tmp_path, monkeypatch, quiet):
  seen = []
  monkeypatch.setattr(
    report, 'write_report', lambda *_: seen.append(progress_lines.display())
  )
  more = ['--quiet'] * quiet
  said(tmp_path, *more, '--report_html=true', flags=ONE_MODEL)
  assert [type(display) is Display for display in seen] == [quiet]


def test_a_run_that_a_callback_ended_says_why(tmp_path):
  (tmp_path / 'early_stop.py').write_text(
    'import fesem_jax as fj\n'
    'class Early(fj.Callback):\n'
    '  def on_round(self, event):\n'
    "    return fj.Stop('enough')\n"
  )
  out = said(tmp_path, '--callbacks=early_stop:Early', flags=ONE_MODEL)
  assert 'ended after round 1: enough' in out


def test_an_oracle_without_groups_is_refused_before_other_methods_run(tmp_path):
  flags = ('--dataset=diabetes', '--num_clients=6', '--algorithms=fed_avg', '--oracle')
  told = call('compare', *flags, '--workdir=all', cwd=tmp_path)
  assert told.returncode == 1
  assert told.stderr.startswith('error: algorithm=oracle needs the true groups')
  assert not (tmp_path / 'all').exists()
