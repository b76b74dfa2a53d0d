"""--redo deletes the runs of a method only if new ones can take their place."""

import pytest

from tests.experiments.binaries_test import LOGISTIC
from tests.support.commands import call

REDO = [
  *LOGISTIC, '--algorithms=non_fed', '--num_seeds=1', '--workdir=table',
  '--report_html=false', '--redo=non_fed',
]  # fmt: skip


@pytest.fixture
def earlier(tmp_path):
  """Files of an earlier run and of an earlier tuning run, in the workdir."""
  files = [tmp_path / 'table' / at for at in ('non_fed/seed7', 'tune/non_fed/a/seed1')]
  for file in files:
    file.parent.mkdir(parents=True)
    file.write_text('earlier')
  return files


@pytest.mark.parametrize(
  ('flag', 'reason'),
  [
    ('--dataset=npz:absent.npz', 'absent.npz'),
    ('--learning_rate=-1', 'learning_rate'),
    ('--clients_per_round=50', 'clients_per_round'),
  ],
)
def test_runs_stay_if_their_method_cannot_run_again(tmp_path, earlier, flag, reason):
  done = call('compare', *REDO, flag, cwd=tmp_path)
  assert done.returncode == 1
  assert '--redo=non_fed: its runs stay' in done.stdout
  assert reason in done.stdout
  assert [file.read_text() for file in earlier] == ['earlier', 'earlier']


def test_runs_are_deleted_if_their_method_runs_again(tmp_path, earlier):
  done = call('compare', *REDO, '--patience=2', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert 'its runs stay' not in done.stdout
  assert not any(file.exists() for file in earlier)
  assert (tmp_path / 'table/non_fed/seed0/summary.json').exists()
