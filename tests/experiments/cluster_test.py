"""Comparisons whose runs are jobs, here processes of this machine."""

import re

import pytest

from experiments import cluster
from tests.support.commands import ROOT, call

DIES = """
import os, pathlib, signal
from fesem_jax.algorithms import build

def method(local):
  path = pathlib.Path('died')
  deaths = path.stat().st_size if path.exists() else 0
  if 'SUBMITIT_EXECUTOR' in os.environ and deaths < 2:
    path.write_text('x' * (deaths + 1))
    os.kill(os.getpid(), signal.SIGKILL)
  return build('fed_avg', local)
"""


@pytest.mark.nightly
def test_a_job_that_dies_costs_its_own_runs_alone(tmp_path, monkeypatch, caplog):
  def compare(*given):
    command = ['--launcher=processes', '--num_seeds=1', '--num_clients=4', '--rounds=1']
    command += ['--algorithms=fed_avg,Dies=dies:method', '--workdir=runs', '--quiet']
    return call('compare', *command, *given, cwd=tmp_path)

  def times():
    return [path.stat().st_mtime_ns for path in tmp_path.glob('runs/*/*/metrics.jsonl')]

  pytest.importorskip('submitit')
  (tmp_path / 'dies.py').write_text(DIES)
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{tmp_path}')
  monkeypatch.syspath_prepend(tmp_path)
  for name, value in (('LAG_SECONDS', 1.0), ('MOST_TRIES', 1), ('POLL_SECONDS', 0.3)):
    monkeypatch.setattr(cluster, f'_{name}', value)
  assert 'parts are done; repeat' in compare('--wait=0').stdout
  done = compare()
  assert done.returncode == 1
  assert re.search(r'Dies: job died .no result.; see /', done.stderr)
  assert 'Dies: job died (no result); see' in caplog.text
  (before,) = times()
  assert compare().returncode == 0
  assert before in times()
  assert len(times()) == 2
