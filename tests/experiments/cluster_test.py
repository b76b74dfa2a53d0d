"""Comparisons whose runs are jobs, on processes of this machine."""

import json
import re

import pytest

from tests.support.commands import ROOT, call

pytest.importorskip('submitit')

DIES = """
import os, pathlib, signal
from fesem_jax.algorithms import build

def method(local, *, deaths=1):
  died = len(list(pathlib.Path().glob('died*')))
  if 'SUBMITIT_EXECUTOR' in os.environ and died < deaths:
    pathlib.Path(f'died{died}').touch()
    os.kill(os.getpid(), signal.SIGKILL)
  return build('fed_avg', local)
"""
QUICK = [
  '--num_seeds=2', '--dataset=digits', '--num_clients=4', '--rounds=1',
  '--workdir=runs', '--launcher=processes', '--workers=2', '--quiet',
]  # fmt: skip


@pytest.fixture
def compare(tmp_path, monkeypatch):
  """A comparison of FedAvg with a method whose process dies so often."""
  (tmp_path / 'dies.py').write_text(DIES)
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{tmp_path}')
  monkeypatch.syspath_prepend(tmp_path)

  def run(deaths, *given):
    methods = f'--algorithms=fed_avg,Dies=dies:method(deaths={deaths})'
    return call('compare', methods, *QUICK, *given, cwd=tmp_path)

  return run


@pytest.mark.slow
def test_a_job_that_dies_is_named_and_costs_its_own_runs_alone(
  compare, tmp_path, caplog
):
  found = compare(1)
  assert found.returncode == 0, found.stderr
  assert re.findall(r'job \d+ of (\w+): no result; see', caplog.text) == ['Dies']
  jobs = json.loads((tmp_path / 'runs/jobs/jobs.json').read_text())
  assert [folder[-1] for folder, _ in jobs.values()] == ['0', '1']
  rows = json.loads((tmp_path / 'runs/table.json').read_text())
  assert [row['deployed.micro_accuracy_count'] for row in rows] == [2, 2]
  times = [path.stat().st_mtime_ns for path in tmp_path.glob('runs/*/*/metrics.jsonl')]
  # Nothing is left to run, nor to wait for.
  assert 'fed_avg' in compare(1, '--wait=false').stdout
  again = [path.stat().st_mtime_ns for path in tmp_path.glob('runs/*/*/metrics.jsonl')]
  assert again == times


@pytest.mark.nightly
def test_a_job_that_dies_three_times_leaves_the_others(compare, tmp_path):
  assert 'repeat to collect them' in compare(9, '--wait=false').stdout
  found = compare(9)
  assert found.returncode == 1
  assert re.search(r'Dies: job \d+ of Dies: no result; see runs', found.stderr)
  assert 'fed_avg' in (tmp_path / 'runs/table.md').read_text()
