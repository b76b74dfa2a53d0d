"""The measurement of accelerators runs whole, in small form, on a CPU."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks.accelerator import figure, measuring, right, running, speed


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
  printed, held = run(tmp_path, '--minutes=4', '--parts=a,c')
  assert {p: x['ended'] for p, x in held['parts'].items()} == {'a': 'done', 'c': 'done'}
  rows = held['parts']['a']['rows'] + held['parts']['c']['rows']
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
  assert same == held
  assert 'what=' not in again


@pytest.mark.nightly
def test_a_part_that_dies_or_hangs_keeps_its_rows(tmp_path, monkeypatch):
  file = running.File(tmp_path, 'A chip 80GB')
  settings = running.Settings(tmp_path, True, str(tmp_path))
  for part, ended in (('dies', 'died with exit code 3'), ('hangs', 'ended after 20 s')):
    monkeypatch.setitem(running.PARTS, part, ('stub_of_a_part', 0))
    monkeypatch.setenv('STUB', part)
    monkeypatch.setattr(running, 'PACKAGE', 'tests.support')
    running.run_part(part, 20, file, settings)
    held = json.loads((tmp_path / 'accelerator_a_chip_80gb.json').read_text())
    assert held['parts'][part]['rows'] == [{'what': part, 'value': 1.5}]
    assert held['parts'][part]['ended'] == ended


def test_states_are_compared():
  before = {'w': np.zeros(4, np.float32), 'n': np.arange(3)}
  want = {'w': np.array([3, 4, 0, np.nan], np.float32), 'n': np.arange(3)}
  got = {'w': np.array([3, 4, 0.5, np.nan], np.float32), 'n': np.array([0, 1, 5])}
  assert right.compared(before, want, got) == {'apart': 0.1, 'move': 5.0, 'differ': 1}
  assert right.compared(before, want, want)['apart'] == 0


@pytest.mark.nightly
def test_rounds_on_two_devices_of_one_process_are_compared():
  # The second CPU device is to the first as the CPU is to an accelerator.
  assert measuring.host() != measuring.chip()
  rows = []
  watch = measuring.Watch(rows.append, np.inf, True, {}, '')
  right.compare_rounds(watch, 'fesem')
  assert [r['precision'] for r in rows] == ['highest', 'default']
  for row in rows:
    assert row['apart'] < 1e-5 > row['apart 2']
    assert row['move'] > 1e-3 < row['move 2']
    assert row['differ'] == row['differ 2'] == 0


def test_seconds_are_those_of_a_call():
  calls = []

  def fn():
    calls.append(1)
    return jax.numpy.zeros(1)

  found = measuring.timed(fn, most=0.2, repeats=5, calls=2)
  assert len(calls) == 2 + 2 * found['timings']
  assert found['least_seconds'] <= found['seconds'] <= found['most_seconds']
  assert 3 <= found['timings'] <= 5


def test_no_case_comes_twice():
  cases = [case for stage in speed.stages(False) for case in stage]
  assert len(cases) == len(set(cases)) > 40
  assert [c for c in cases if c.is_default] == [speed.Case(w) for w in speed._ORDER]


def test_the_figure_shows_defaults_and_equal_work_in_float32():
  of_ours = {'default': True, 'workload': 'W1', 'steps_per_second': 9.0}
  loop = {'arrangement': 'loop', 'workload': 'W1', 'steps_per_second': 1.0}
  parts = {
    'c': {'rows': [of_ours, of_ours | {'default': False, 'steps_per_second': 7.0}]},
    'd': {
      'rows': [
        loop | {'precision': 'highest'},
        loop | {'precision': 'default', 'steps_per_second': 2.0},
        loop | {'precision': 'highest', 'workload': 'W2', 'unequal': 'a norm'},
        {'workload': 'W8', 'error': 'RuntimeError'},
      ]
    },
  }
  found = figure.rates(parts)
  assert found['fesem_jax'] == {'W1': 9.0}
  assert found['loop'] == {'W1': 1.0}
  bars = figure.draw('A chip', found).axes[0].patches
  assert [bar.get_height() for bar in bars if bar.get_height() > 0] == [9.0, 1.0]
