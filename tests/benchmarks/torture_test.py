"""The tool that tortures runs kills where it says, and sees what changed."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.torture import figures, hooks, table, trials
from benchmarks.torture.children import ROOT, Ended

_SCRIPT = """
import os, pathlib, time
from benchmarks.torture import hooks
hooks.install_from_environment()
folder = pathlib.Path(os.environ['FOLDER'])
for i in range(4):
  (folder / 'new').write_text(str(i))
  os.replace(folder / 'new', folder / 'held')
time.sleep(5 * {waits})
"""


@pytest.fixture
def scratch():
  folder = pathlib.Path(hooks.scratch())
  (folder / 'runs').mkdir()
  yield folder
  shutil.rmtree(folder, ignore_errors=True)


def run(plan, scratch, waits=0):
  environment = os.environ | {
    hooks.VARIABLE: json.dumps(plan._asdict()),
    'FOLDER': str(scratch / 'runs'),
    'PYTHONPATH': str(ROOT),
  }
  script = _SCRIPT.format(waits=waits)
  return subprocess.run(
    [sys.executable, '-c', script], env=environment, capture_output=True, check=False
  )


def test_a_process_is_killed_before_the_renaming_that_a_plan_names(scratch):
  counts = scratch / 'counts.json'
  assert run(hooks.Plan(counts=str(counts)), scratch).returncode == 0
  counted = json.loads(counts.read_text())
  assert counted['between renames'] == 4
  assert counted['at a file of the run'] == 4  # But those that are read.
  for number in (1, 3):
    (scratch / 'runs/held').unlink()
    killed = run(hooks.Plan('between renames', number), scratch)
    assert killed.returncode == -signal.SIGKILL
    assert (scratch / 'runs/new').read_text() == str(number - 1)
    assert (scratch / 'runs/held').exists() == (number > 1)
    (scratch / 'runs/held').touch()
  later = hooks.Plan('between renames', 4, delay=0.05)
  assert run(later, scratch, waits=1).returncode == -signal.SIGKILL
  assert (scratch / 'runs/held').read_text() == '3'
  other = hooks.Plan('between renames', 1, only='--process_id=1')
  assert run(other, scratch).returncode == 0


def test_clocks_jump_and_locks_fail():
  clock = hooks._jumping(lambda: 0.0)
  seen = [clock() for _ in range(100)]
  assert min(seen) < -1e5
  assert max(seen) > 1e5
  assert 0.0 in seen
  with pytest.raises(OSError, match='No locks'):
    hooks._no_locks(0, 0)


def tables(seconds, bytes_sent=3):
  """Two tables in Markdown, each with a column of seconds."""
  return (
    f'| a | s/round |\n|---|---|\n| 1 | {seconds} |\n\nCosts.\n\n'
    f'| seconds a round / FedAvg | bytes |\n|---|---|\n| {seconds} | {bytes_sent} |\n'
  )


def test_figures_are_what_outlasts_the_clock(tmp_path):
  one, other = tmp_path / 'one', tmp_path / 'other'
  for folder, seconds in ((one, 1.0), (other, 2.0)):
    (folder / 'checkpoints/1').mkdir(parents=True)
    (folder / 'checkpoints/1/state').write_text(str(seconds))
    record = {'round': 1, 'loss': 0.5, 'seconds': seconds}
    (folder / 'metrics.jsonl').write_text(json.dumps(record) + '\n')
    summary = {'deployed': 0.5, 'timing': {'total_seconds': seconds}}
    (folder / 'summary.json').write_text(json.dumps(summary))
    (folder / 'config.json').write_text(json.dumps({'rounds': seconds, 'seed': 0}))
    (folder / 'table.md').write_text(tables(seconds))
    np.savez(folder / 'models.npz', w=np.zeros(3, np.float32))
  assert not figures.differences(figures.of(one), figures.of(other))
  (other / 'table.md').write_text(tables(2.0, bytes_sent=4))
  assert figures.differences(figures.of(one), figures.of(other)) == ['table.md']
  np.savez(other / 'models.npz', w=np.full(3, 1e-45, np.float32))
  (other / 'metrics.jsonl').write_text('{"round": 1, "loss": 0.50000001}\n')
  (other / '.x.partial').touch()
  (other / 'table.md').unlink()
  changed = figures.differences(figures.of(one), figures.of(other))
  assert changed == ['.x.partial', 'metrics.jsonl', 'models.npz', 'table.md']
  (other / 'models.npz').write_bytes(b'PK')
  assert figures.of(other)['models.npz'].startswith('damaged')


def test_remedies_are_those_that_errors_name(tmp_path):
  path = tmp_path / 'clients.csv'
  path.touch()
  assert not trials._remedied('error: restore a valid copy.', tmp_path)
  assert trials._remedied(f'x\nerror: {path} is damaged; delete it.', tmp_path)
  assert not path.exists()
  assert Ended(1, 'error: one sentence.', 0).refused
  assert not Ended(1, 'Traceback\nerror: one sentence.', 0).refused
  assert Ended(137, '', 0).killed
  assert Ended(-9, '', 0).killed


def test_the_table_counts_what_went_wrong():
  outcomes = [
    trials.Outcome('kill -9 in a save', 'FeSEM', 1),
    trials.Outcome('kill -9 in a save', 'IFCA', 1, lost='why'),
    trials.Outcome('a flipped bit', 'IFCA', 1, changed=('a', 'b')),
  ]
  run = {'rows': table.rows(outcomes), 'by_command': table.by_command(outcomes)}
  text = table.of_runs([run])
  assert text == table.as_markdown(*run.values())
  assert '| kill -9 in a save | 4 | 0 | 2 | 0 |' in table.of_runs([run, run])
  assert '| all kills of IFCA | 2 | 0 | 2 | 0 |' in table.of_runs([run, run])
  assert '| kill -9 in a save | 2 | 0 | 1 | 0 |' in text
  assert '| a flipped bit | 1 | 0 | 0 | 1 |' in text
  assert text.endswith('| all kills | 2 | 0 | 1 | 0 |')
  assert 'LOST why' in table.line(outcomes[1])


def test_moments_are_drawn_of_those_that_came():
  base = trials.Baseline(None, None, {}, {'in a save': 3}, 10.0)
  rng = random.Random(0)
  drawn = [trials._draw('in a save', base, rng, hooks.Plan())[0] for _ in range(50)]
  assert {plan.number for plan in drawn} == {1, 2, 3}
  assert {plan.delay == 0 for plan in drawn} == {True, False}
  assert trials._draw('at a removal', base, rng, hooks.Plan()) is None
  assert 1 <= trials._draw('at any time', base, rng, hooks.Plan())[1] <= 7
