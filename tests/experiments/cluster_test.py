"""Comparisons whose runs are jobs, here processes of this machine."""

import re

import pytest

from experiments import cluster
from tests.support.commands import ROOT, call

DIES = """
import os, pathlib, signal
from fesem_jax.algorithms import build

def method(local, *, deaths=1):
  path = pathlib.Path(f'died{deaths}')
  died = path.stat().st_size if path.exists() else 0
  if 'SUBMITIT_EXECUTOR' in os.environ and died < deaths:
    path.write_text('x' * (died + 1))
    os.kill(os.getpid(), signal.SIGKILL)
  return build('fed_avg', local)
"""


@pytest.mark.slow
def test_a_job_that_dies_costs_its_own_runs_alone(tmp_path, monkeypatch, caplog):
  def compare(*given):
    command = ['--launcher=processes', '--num_seeds=1', '--num_clients=4', '--rounds=1']
    return call('compare', *command, '--workdir=runs', '--quiet', *given, cwd=tmp_path)

  def times():
    return [path.stat().st_mtime_ns for path in tmp_path.glob('runs/*/*/metrics.jsonl')]

  pytest.importorskip('submitit')
  (tmp_path / 'dies.py').write_text(DIES)
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{tmp_path}')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(cluster, '_LAG_SECONDS', 1.0)
  monkeypatch.setattr(cluster, '_MOST_TRIES', 1)
  monkeypatch.setattr(cluster, '_POLL_SECONDS', 0.3)
  methods = '--algorithms=fed_avg,Once=dies:method,Often=dies:method(deaths=9)'
  assert 'parts are done; repeat' in compare(methods, '--workers=3', '--wait=0').stdout
  done = compare(methods)
  assert done.returncode == 1
  assert re.search(r'Often: job died .no result.; see /', done.stderr)
  assert 'Once: job died (no result); see' in caplog.text
  before = times()
  assert len(before) == 2
  assert compare('--algorithms=fed_avg,Once=dies:method', '--wait=0').returncode == 0
  assert times() == before
