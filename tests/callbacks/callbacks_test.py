"""Callbacks: what they are told and add, and how they end a run."""

import json

import numpy as np
import pandas
import pytest

import fesem_jax as fj
from fesem_jax.core import prng_streams
from fesem_jax.run.checkpoint import Checkpoints
from tests.support.runs import (
  assert_same_state,
  federation,
  records,
  simulated_linear,
  without_time,
)

OPTIONS = {'rounds': 4, 'eval_every': 2, 'clients_per_round': 3}


class Watch(fj.Callback):
  """Keeps what it is told, and adds to records."""

  def __init__(self):
    self.calls, self.events = [], {}

  def _told(self, what, event):
    self.calls.append((what, event.number))
    self.events[what, event.number] = event

  def on_start(self, event):
    self._told('start', event)
    self.known = [r['round'] for r in (*event.records, event.record)]

  def on_round(self, event):
    self._told('round' if event.measured is None else 'evaluation', event)
    event.record['mine'] = np.float32(event.number)
    event.assignment, event.cohort  # noqa: B018 - kept.
    if event.measured is not None:
      event.record['worst'] = {
        'accuracy': event.clients.deployed_accuracy[:2].to_numpy()
      }
      names = event.models.names.tolist()
      params = [event.models.params(client=name) for name in names]
      self.bias = {n: p['logits']['bias'] for n, p in zip(names, params, strict=True)}

  def on_end(self, event):
    self._told('end', event)
    event.summary['mine'] = [1, 2]

  def close(self, error):
    self.calls.append(('close', error))
    return True  # Which hides no error.


class Ending(fj.Callback):
  """Stops or fails in one method of one round."""

  def __init__(self, method, number=2, what=None):
    self._number, self._what = number, what
    setattr(self, method, self._at)

  def _at(self, event):
    if event.number != self._number and event.result is None:
      return None
    if isinstance(self._what, Exception):
      raise self._what
    return self._what(event) if callable(self._what) else self._what


@pytest.fixture(scope='module')
def whole():
  """A run that nobody watches."""
  return simulated_linear(**OPTIONS)


@pytest.fixture(scope='module')
def watched(tmp_path_factory):
  """The same run with a callback, its workdir and its result."""
  watch, folder = Watch(), tmp_path_factory.mktemp('watched')
  return watch, folder, simulated_linear(**OPTIONS, workdir=folder, callbacks=[watch])


def test_callbacks_are_called_in_order(watched):
  watch, _, result = watched
  assert watch.calls == [
    ('start', 0), ('round', 1), ('evaluation', 2), ('round', 3), ('evaluation', 4),
    ('end', 4), ('close', None),
  ]  # fmt: skip
  assert watch.events['end', 4].reason == 'finished' == result.summary['ended']


def test_what_callbacks_add_is_saved_and_nothing_else_changes(watched, whole):
  _, folder, result = watched
  assert_same_state(result.state, whole.state)
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').open()]
  assert [r.pop('mine', None) for r in lines] == [None, 1.0, 2.0, 3.0, 4.0]
  worst = [r.pop('worst')['accuracy'] for r in lines if 'worst' in r]
  np.testing.assert_array_equal(worst[1], result.clients.deployed_accuracy[:2])
  assert without_time(lines) == without_time(whole.history)
  assert json.loads((folder / 'summary.json').read_text())['mine'] == [1, 2]


def test_events_have_clients_in_the_order_of_the_data(watched):
  watch, _, result = watched
  train, _ = federation()
  start, last = watch.events['start', 0], watch.events['evaluation', 4]
  assert start.train.info.names.tolist() == train.info.names.tolist()
  assert (start.rounds, start.seed, start.number, watch.known) == (4, 0, 0, [0])
  for number in range(1, 5):
    rng = prng_streams.host_rng(0, prng_streams.COHORT, number)
    drawn = np.sort(rng.choice(7, 3, replace=False))
    event = watch.events['evaluation' if number % 2 == 0 else 'round', number]
    np.testing.assert_array_equal(event.cohort, drawn)
    sizes = np.bincount(event.assignment, minlength=2)
    assert sizes.tolist() == event.record['cluster_sizes']
  np.testing.assert_array_equal(last.assignment, result.clients.cluster)
  pandas.testing.assert_frame_equal(last.clients, result.clients)
  assert list(watch.bias) == train.info.names.tolist()
  for name, bias in watch.bias.items():
    theirs = result.deployed.params(client=name)['logits']['bias']
    np.testing.assert_array_equal(bias, theirs)


def test_a_resumed_run_tells_of_the_rounds_that_it_skips(whole, tmp_path):
  simulated_linear(**OPTIONS | {'rounds': 2}, workdir=tmp_path)
  watch = Watch()
  simulated_linear(**OPTIONS, workdir=tmp_path, callbacks=[watch])
  assert (watch.calls[0], watch.known) == (('start', 2), [0, 1, 2])
  assert watch.calls[1] == ('round', 3)
  again = Watch()
  simulated_linear(**OPTIONS, workdir=tmp_path, callbacks=[again])
  assert again.calls == [('start', 4), ('end', 4), ('close', None)]


def test_a_stop_ends_the_run_with_its_reason(whole, tmp_path):
  stop = fj.Stop('good enough')

  def go(rounds=4, callbacks=()):
    return simulated_linear(
      **OPTIONS | {'rounds': rounds}, workdir=tmp_path, callbacks=callbacks
    )

  first = go(callbacks=[Ending('on_round', 2, stop)])
  assert (first.summary['ended'], first.summary['rounds']) == ('good enough', 2)
  assert first.history[-1]['stopped'] == {'reason': 'good enough', 'rounds': 4}
  assert 'deployed' in first.history[-1]
  assert Checkpoints(tmp_path).latest_round() == 2
  # The same command trains no further, whatever its callbacks; more rounds do.
  (tmp_path / 'summary.json').unlink()
  again = go()
  assert (again.summary['ended'], again.summary['rounds']) == ('good enough', 2)
  longer = go(5)
  assert (longer.summary['ended'], longer.summary['rounds']) == ('finished', 5)
  del longer.history[2]['stopped']
  assert without_time(longer.history)[:4] == without_time(whole.history)[:4]


def test_a_stop_between_evaluations_is_measured():
  ending = Ending('on_round', 1, fj.Stop('enough'))
  watch = Watch()
  result = simulated_linear(**OPTIONS, callbacks=[ending, watch])
  assert (result.summary['ended'], 'deployed' in result.history[-1]) == ('enough', True)
  # Called again, with the evaluation.
  assert watch.calls[1:3] == [('round', 1), ('evaluation', 1)]
  assert result.history[1]['mine'] == 1.0


def test_an_error_at_the_start_closes_what_has_started():
  first, later = Watch(), Watch()
  ending = Ending('on_start', 0, ZeroDivisionError('mine'))
  with pytest.raises(ZeroDivisionError, match='mine') as caught:
    simulated_linear(**OPTIONS, callbacks=[first, ending, later])
  assert first.calls == [('start', 0), ('close', caught.value)]
  assert not later.calls


def test_an_error_leaves_a_run_that_goes_on_bit_identically(whole, tmp_path):
  watch = Watch()
  ending = Ending('on_round', 2, ZeroDivisionError('mine'))
  with pytest.raises(ZeroDivisionError, match='mine') as caught:
    simulated_linear(**OPTIONS, workdir=tmp_path, callbacks=[ending, watch])
  assert watch.calls[-1] == ('close', caught.value)
  rest = simulated_linear(**OPTIONS, workdir=tmp_path)
  assert_same_state(rest.state, whole.state)
  mine = [{k: v for k, v in r.items() if k not in ('mine', 'worst')}
          for r in records(tmp_path)]  # fmt: skip
  assert mine == without_time(whole.history)


def test_what_is_not_a_number_is_null_in_records(tmp_path):
  def add(event):
    event.record['mine'] = np.array([np.nan, 1.5, -np.inf])

  made = simulated_linear(
    **OPTIONS, workdir=tmp_path, callbacks=[Ending('on_round', 2, add)]
  )
  assert made.history[2]['mine'] == [None, 1.5, None]
  for line in (tmp_path / 'metrics.jsonl').open():
    json.loads(line, parse_constant=pytest.fail)


def test_a_finished_run_gets_new_entries_of_its_callbacks(tmp_path):
  class Times(fj.Callback):
    def on_end(self, event):
      event.summary['calls'] = np.float32(next(calls))

  calls = iter([1, 2])
  for number in (1, 2):
    simulated_linear(**OPTIONS, workdir=tmp_path, callbacks=[Times()])
    assert json.loads((tmp_path / 'summary.json').read_text())['calls'] == number
  assert simulated_linear(**OPTIONS, workdir=tmp_path).summary['calls'] == 2
