"""The measurement of accelerators runs whole, in small form, on a CPU."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.accelerator import right


def run(folder, *args):
  command = [sys.executable, '-m', 'benchmarks.accelerator', '--small', *args]
  done = subprocess.run(
    [*command, f'--output={folder}'], env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return done.stdout, json.loads((folder / 'accelerator_cpu.json').read_text())


@pytest.mark.nightly
def test_parts_are_measured_and_kept(tmp_path):
  printed, results = run(tmp_path, '--minutes=4', '--parts=a,c')
  assert {p: x['ended'] for p, x in results['parts'].items()} == {
    'a': 'done',
    'c': 'done',
  }
  rows = results['parts']['a']['rows'] + results['parts']['c']['rows']
  assert not [row for row in rows if 'error' in row]
  assert len([line for line in printed.splitlines() if 'what=' in line]) >= 12
  (default,) = (r for r in rows if r.get('default'))
  (peak,) = (r['value'] for r in rows if r.get('what') == 'products float32')
  # 10,000 clients of 5 steps, of 101,120 operations each.
  assert default['client_steps'] == 50_000
  rate = default['steps_per_second']
  assert rate == pytest.approx(50_000 / default['seconds'])
  assert default['of_peak'] == pytest.approx(101_120 * rate / peak)
  again, same = run(tmp_path, '--minutes=1', '--parts=a,c')
  assert same == results
  assert 'what=' not in again


def test_states_are_compared():
  before = {'w': np.zeros(4, np.float32), 'n': np.arange(3)}
  want = {'w': np.array([3, 4, 0, np.nan], np.float32), 'n': np.arange(3)}
  got = {'w': np.array([3, 4, 0.5, np.nan], np.float32), 'n': np.array([0, 1, 5])}
  assert right.compared(before, want, got) == {'apart': 0.1, 'move': 5.0, 'differ': 1}
  assert right.compared(before, want, want)['apart'] == 0
