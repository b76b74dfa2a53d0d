"""What a run shows of its waits and rounds, and where."""

import io
import re
import sys
import time

import pytest

from fesem_jax.run.results import records
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import progress_lines


@pytest.fixture
def clock(monkeypatch):
  """A clock that a test sets: its first entry is the time."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  return now


def test_a_log_gets_a_line_a_minute(clock, capsys):
  with progress_lines.shown():
    display = progress_lines.current.get()
    display.prefix = 'fesem(4): '
    with progress_lines.waiting_for('short'):
      clock[0] += 59
    with progress_lines.waiting_for('compiling'):
      clock[0] += 61
    for done in range(1, 1001):
      clock[0] += 1 / 8
      display.rounds(done, 1000, 'loss 0.5', over=done == 1000)
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == 'fesem(4): compiling: 0:01:01'
  assert [line.split(', loss 0.5')[0] for line in lines[1:]] == [
    'fesem(4): round 480/1000', 'fesem(4): round 960/1000',
  ]  # fmt: skip


def test_nothing_is_shown_if_not_asked_to(clock, capsys):
  with progress_lines.shown(progress=False), progress_lines.waiting_for('long'):
    clock[0] += 100
  assert capsys.readouterr().err == ''


class _Terminal(io.StringIO):
  """A terminal that keeps what is written to it."""

  def isatty(self):
    return True


@pytest.mark.parametrize('width', [60, 120])
def test_a_terminal_has_live_lines_that_fit(width, monkeypatch):
  terminal = _Terminal()
  monkeypatch.setattr(sys, 'stderr', terminal)
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', str(width))
  figures = 'loss 0.523, [91.4%], clusters 25/25/25/25'
  with progress_lines.shown():
    display = progress_lines.current.get()
    with progress_lines.waiting_for('compiling [/a] round'):
      display.refresh()
    display.rounds(3, 20, figures)
    display.refresh()
    display.rounds(20, 20, 'loss 0.5', over=True)
  plain = re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', terminal.getvalue())
  lines = re.split(r'[\r\n]+', plain)
  assert max(map(len, lines)) <= width
  assert any(line.startswith('compiling [/a] round') for line in lines)
  assert any(line.startswith('round 3/20') for line in lines)
  assert any(figures in line for line in lines)


def test_rounds_show_the_accuracy_of_deployed_models_as_tables_do():
  deployed, finetuned = ({'micro_accuracy': share} for share in (0.25, 0.75))
  measured = {'deployed': deployed, 'finetuned': finetuned}
  record = {'train_loss': 0.5, 'cluster_sizes': [4, 3]}
  line = records.progress(record, measured, CLASSIFICATION)
  assert line == 'loss 0.500, accuracy 25.0%, clusters 4/3'
  measured['honest'] = {'deployed': finetuned}
  line = records.progress({}, measured, CLASSIFICATION)
  assert line == 'accuracy 75.0% of honest clients'
