"""Text on the outcome of runs."""

import re
import types

import pytest

from experiments import many_runs, outcome
from tests.support.commands import call


def test_one_of_many_runs_is_described_in_a_line():
  scores = {'micro_accuracy': 0.9736, 'macro_f1': 0.5}
  found = {'deployed': scores, 'finetuned': scores | {'micro_accuracy': 1.0}}
  text = 'deployed micro-accuracy 97.4 %, fine-tuned 100.0 %'
  assert outcome.line(found, 2.06) == f'{text}, 2.1 s'
  assert outcome.line(found | {'clusters': None}, 0) == f'{text}, 0.0 s'
  clusters = {'clusters': {'ari': 0.955}}
  assert outcome.line(found | clusters, 1) == f'{text}, ARI 0.95, 1.0 s'
  unknown = {'clusters': {'ari': None}}
  assert outcome.line(found | unknown, 1) == f'{text}, 1.0 s'
  few = {kind: {'micro_accuracy': 0.5} for kind in ('deployed', 'finetuned')}
  of_honest = 'deployed micro-accuracy 50.0 %, fine-tuned 50.0 %, of honest clients'
  assert outcome.line(found | {'honest': few}, 1) == f'{of_honest}, 1.0 s'
  errors = {'task': 'regression', 'deployed': {'micro_rmse': 0.12345}}
  errors |= {'finetuned': {'micro_rmse': 2.0}}
  assert outcome.line(errors, 1) == 'deployed micro-rmse 0.123, fine-tuned 2.000, 1.0 s'


@pytest.mark.parametrize('quiet', [False, True])
def test_of_many_runs_notes_are_printed_once_and_scores_unless_quiet(
  quiet, monkeypatch, capsys, tmp_path
):
  scores = {'micro_accuracy': 0.5}
  summary = {
    'deployed': scores, 'finetuned': scores, 'timing': {'total_seconds': 1.0},
    'rounds': 2,
  }  # fmt: skip
  made = types.SimpleNamespace(summary=summary, history=[], clients=None)

  def plan(config, machine, workdir, *, say, held, make_portrait):
    say(f'Note: {config["note"]}')
    return many_runs.Planned(None, lambda result: None)

  def run_many(runs, asked, keep, splits):
    for place in range(len(runs)):
      keep(place, made)

  monkeypatch.setattr(many_runs, 'plan', plan)
  monkeypatch.setattr(many_runs, 'run_many', run_many)
  monkeypatch.setattr(many_runs.experiment_flags, 'machine', lambda: {'quiet': quiet})
  said = set()
  (tmp_path / 'c' / 'checkpoints' / '2').mkdir(parents=True)
  # This one is continued, and was not done before.
  (tmp_path / 'b' / 'checkpoints' / '1').mkdir(parents=True)
  (tmp_path / 'b' / 'summary.json').touch()
  wanted = [
    many_runs.Wanted({'note': note, 'seed': 0}, tmp_path / name, name)
    for name, note in (('a', 'one'), ('b', 'one'), ('c', 'two'))
  ]
  many_runs.run_unless_diverged(wanted, printed=said)
  lines = capsys.readouterr().out.splitlines()
  notes = ['[a] Note: one', '[c] Note: two']
  assert [line for line in lines if 'Note' in line] == notes
  text = 'deployed micro-accuracy 50.0 %, fine-tuned 50.0 %, '
  scored = [line.split(text)[0] for line in lines if text in line]
  assert scored == ([] if quiet else ['[a] ', '[b] ', '[c] '])
  # A run that was finished by an earlier command says so.
  before = [line[:3] for line in lines if '1.0 s, done before; ' in line]
  assert before == ([] if quiet else ['[c]'])


def test_runs_are_counted_with_the_time_that_is_left():
  count = many_runs.Count(4)
  assert count.add() == 'run 1 of 4'  # Done before: says nothing of the others.
  assert count.add(30) == 'run 2 of 4, about 1:00 left'
  assert count.add(60) == 'run 3 of 4, about 0:45 left'
  assert count.add(1) == 'run 4 of 4'


@pytest.mark.nightly
def test_each_run_and_method_says_which_of_all_it_is(tmp_path):
  flags = (
    '--algorithms=non_fed,fed_sgd', '--num_seeds=1', '--model=logistic', '--rounds=1',
    '--dataset=digits', '--num_clients=4', '--workdir=runs', '--report_html=false',
  )  # fmt: skip
  first, again = (call('compare', *flags, cwd=tmp_path).stdout for _ in range(2))
  for out in (first, again):
    assert out.count('; run 2 of 2\n') == 1
  assert re.search(r's; run 1 of 2, about \d+:\d\d left\n', first)
  assert again.count(' s, done before; run ') == 2
  assert ' left' not in again
