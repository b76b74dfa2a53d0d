"""What a run says of its waits and rounds, and where."""

import io
import re
import sys
import time

import pytest

from fesem_jax import algorithms
from fesem_jax.run.programs import Programs
from fesem_jax.run.results import records
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import progress_lines
from fesem_jax.utils.progress_display import Rounds
from tests.support import helpers
from tests.support.methods import federation
from tests.support.runs import simulate


@pytest.mark.slow
def test_a_run_says_what_it_waits_for(capsys):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('fesem', local, num_clusters=2)
  programs = Programs()

  def lines(progress):
    simulate(algorithm, data, data, rounds=1, progress=progress, programs=programs)
    said = capsys.readouterr()
    assert said.out == ''
    return re.findall(r'([^\r\n]+?)(?: \.\.\.|: \d+\.\d s)$', said.err, re.MULTILINE)

  before = ['placing the data', 'checking the method on the data']
  before = [what for what in before for _ in range(2)]  # When it begins and ends.

  def prepared(*names):
    steps = [f'{step} {name}' for name in names for step in ('tracing', 'lowering')]
    return [what for what in steps for _ in range(2)]

  assert lines(True) == [
    *before,
    *prepared('the start', 'a round', 'the evaluation'),
    *['compiling the start, a round, the evaluation'] * 2,
    *['first models and clusters'] * 2,
    *prepared('the clusters'),
    *['compiling the clusters'] * 2,
  ]
  # Nothing is compiled twice; a log is told of what is long only.
  assert lines(True) == [*before, *['first models and clusters'] * 2]
  assert lines(None) == []
  assert lines(False) == []


@pytest.fixture
def clock(monkeypatch):
  """A clock that a test sets: its first entry is the time."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  return now


def test_a_log_gets_rounds_at_a_bounded_rate(clock, capsys):
  with progress_lines.shown(None):
    display = progress_lines.display()
    for done in range(1, 1001):
      clock[0] = done / 8
      rounds = Rounds(done, 1000, 'loss 0.5', (1000 - done) / 8)
      display.rounds(rounds, over=done == 1000)
  said = capsys.readouterr().err.splitlines()
  assert [int(re.search(r'round (\d+)/1000', line)[1]) for line in said] == [
    240, 480, 720, 960, 1000,
  ]  # fmt: skip
  assert said[0] == 'round 240/1000: loss 0.5, 1:35 left'
  assert said[-1] == 'round 1000/1000: loss 0.5'


def test_a_log_is_told_of_long_waits_only(monkeypatch, capsys):
  monkeypatch.setattr(progress_lines, '_LONG', 0.05)
  with progress_lines.shown(None):
    with progress_lines.waiting_for('short'):
      pass
    with progress_lines.waiting_for('long'):
      deadline = time.monotonic() + 10
      while not (said := capsys.readouterr().err) and time.monotonic() < deadline:
        time.sleep(0.01)
      assert said == 'long ...\n'  # While it is waited for.
  assert re.fullmatch(r'long: \d+\.\d s\n', capsys.readouterr().err)


def test_nothing_is_shown_if_not_asked_to(clock, capsys):
  with progress_lines.shown(False), progress_lines.waiting_for('long'):
    clock[0] += 100
  assert capsys.readouterr().err == ''


class _Terminal(io.StringIO):
  """A terminal that keeps what is written to it."""

  def isatty(self):
    return True


@pytest.mark.parametrize('width', [40, 100])
def test_a_terminal_has_live_lines_that_fit(width, clock, monkeypatch):
  terminal = _Terminal()
  monkeypatch.setattr(sys, 'stderr', terminal)
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', str(width))
  monkeypatch.delenv('NO_COLOR', raising=False)
  sizes = 'loss 0.523, accuracy 91.4%, clusters 25/25/25/25'
  with progress_lines.shown(None):
    display = progress_lines.display()
    with progress_lines.waiting_for('compiling a round'):
      clock[0] += 3
      display._live.refresh()
    display.rounds(Rounds(3, 20, sizes, 61.0))
    with progress_lines.within_a_round('evaluating'):
      display._live.refresh()
    clock[0] += 5
    display.rounds(Rounds(20, 20, 'loss 0.5', 0.0), over=True)
  plain = re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', terminal.getvalue())
  lines = re.split(r'[\r\n]+', plain)
  assert max(map(len, lines)) <= width
  assert any(re.search('0:03 compiling a round', line) for line in lines)
  assert 'compiling a round: 3.0 s' in lines  # It stays: it was long.
  assert any(re.match('round 3/20 .*1:01 left', line) for line in lines)
  assert (sizes in lines) == (width == 100)
  assert any(line.endswith('evaluating') for line in lines)
  assert 'round 20/20: loss 0.5, 0:05 in all' in lines


def test_rounds_show_the_accuracy_of_deployed_models_as_tables_do():
  deployed, finetuned = ({'micro_accuracy': share} for share in (0.25, 0.75))
  measured = {'deployed': deployed, 'finetuned': finetuned}
  record = {'train_loss': 0.5, 'cluster_sizes': [4, 3]}
  line = records.progress(record, measured, CLASSIFICATION)
  assert line == 'loss 0.500, accuracy 25.0%, clusters 4/3'
  measured['honest'] = {'deployed': finetuned}
  line = records.progress({}, measured, CLASSIFICATION)
  assert line == 'accuracy 75.0% of honest clients'


def test_operations_say_what_they_are_for(capsys):
  with (
    progress_lines.shown(True),
    progress_lines.about('fesem(4), 5 runs'),
    progress_lines.waiting_for('compiling a round'),
  ):
    pass
  with progress_lines.shown(True), progress_lines.waiting_for('drawing'):
    pass
  said = capsys.readouterr().err.splitlines()
  assert said[0] == 'fesem(4), 5 runs: compiling a round ...'
  assert said[2] == 'drawing ...'
