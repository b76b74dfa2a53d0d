"""What flags ask callbacks for, and what a run says that cannot do it."""

import pytest

from fesem_jax.analysis import report
from fesem_jax.utils import progress_lines
from tests.support.commands import call

QUICK = (
  '--dataset=synthetic_linear(groups=2)', '--num_clients=6', '--examples_per_client=8',
  '--model=logistic', '--batch_size=4', '--num_clusters=2',
  '--rounds=2', '--workdir=run',
)  # fmt: skip


ONE_MODEL = *(f for f in QUICK if 'num_clusters' not in f), '--algorithm=fed_avg'


def said(folder, *args, flags=QUICK):
  done = call('run', *flags, *args, cwd=folder)
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.parametrize('quiet', [True, False])
def test_quiet_shows_no_progress_of_the_report(tmp_path, monkeypatch, quiet):
  seen = []
  monkeypatch.setattr(
    report, 'write_report', lambda *_: seen.append(progress_lines.display())
  )
  more = ['--quiet'] * quiet
  said(tmp_path, *more, '--report_html=true', flags=ONE_MODEL)
  assert [display is None for display in seen] == [quiet]


def test_a_run_that_a_callback_ended_says_why(tmp_path):
  (tmp_path / 'early_stop.py').write_text(
    'import fesem_jax as fj\n'
    'class Early(fj.Callback):\n'
    '  def on_round(self, event):\n'
    "    return fj.Stop('enough')\n"
  )
  out = said(tmp_path, '--callbacks=early_stop:Early', flags=ONE_MODEL)
  assert 'ended after round 1: enough' in out
