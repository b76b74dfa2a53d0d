"""Runs side by side: each is what it is alone."""

import contextlib
import functools
import itertools
import json

import jax
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.data.splits import Phase
from fesem_jax.run import loop, programs
from fesem_jax.run.program_memory import ProgramMemory, TooLarge
from fesem_jax.run.spec import spec_of
from fesem_jax.utils.errors import Diverged, UserError
from fesem_jax.utils.interrupts import Stopped
from tests.support import helpers
from tests.support.nights import rest_by_night
from tests.support.runs import (
  GROUPS,
  SIZES,
  TEST_SIZES,
  assert_same_state,
  simulate,
  simulate_many,
)

OPTIONS = {'progress': False, 'finetune_epochs': 0}
OTHER_SIZES = [12, 3, 8, 4, 10, 6, 5]


def data(seed):
  """Splits of seven clients, whose sizes and examples the seed decides."""
  sizes = SIZES if seed % 2 else OTHER_SIZES
  return (
    helpers.federation(sizes, seed, groups=GROUPS),
    helpers.federation(TEST_SIZES, 100 + seed, GROUPS),
  )


def make_method(name, rate=0.1, devices=1, **options):
  local = helpers.local(
    devices=devices, optimizer=fj.local_optimizer('sgd', rate), model='logistic'
  )
  return algorithms.build(name, local, **options)


# Tests share the programs of one method.
built = functools.cache(make_method)


@functools.cache
def maker(name, **options):
  def make(**values):
    return make_method(name, **options, **values)

  return make


def run(algorithm, seed, **others):
  train, test = data(seed)
  return {'algorithm': algorithm, 'train': train, 'test': test, 'seed': seed, **others}


@functools.cache
def method_of(make, **values):
  return make(**values)


def tuned(make, seed, **values):
  """A run of the method that a function makes of values."""
  return run(method_of(make, **values), seed, make=make, values=values)


def alone(requests, **options):
  requests = {name: x for name, x in requests.items() if name not in ('make', 'values')}
  return simulate(**requests, **OPTIONS | options)


@pytest.fixture
def counts(monkeypatch):
  """Of each program's call: its runs, and R."""
  seen, together = [], loop.run_together

  def counted(specs, splits, count, *args):
    seen.append((len(specs), count))
    return together(specs, splits, count, *args)

  monkeypatch.setattr(loop, 'run_together', counted)
  return seen


def assert_close(x, y):
  if isinstance(x, str):
    assert x == y
  else:
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def assert_alike(one, other):
  """Equal within rounding."""
  assert len(one.history) == len(other.history)
  for a, b in zip(one.history, other.history, strict=True):
    a, b = ({k: v for k, v in r.items() if k != 'seconds'} for r in (a, b))
    assert a.keys() == b.keys()
    jax.tree.map(assert_close, a, b)
  for x, y in zip(
    jax.tree.leaves((one.state, one.models, one.clients.deployed_accuracy)),
    jax.tree.leaves((other.state, other.models, other.clients.deployed_accuracy)),
    strict=True,
  ):
    assert_close(x, y)
  assert one.summary.keys() == other.summary.keys()


@pytest.mark.parametrize(
  ('name', 'devices', 'options', 'others'),
  rest_by_night(
    [
      ('fed_avg', 2, {}, {'clients_per_round': 4, 'finetune_epochs': 1}),
      ('fesem', 1, {'num_clusters': 2}, {'eval_every': 3}),
    ]
  ),
)
def test_each_run_is_what_it_is_alone(name, devices, options, others, counts):
  make = maker(name, devices=devices, **options)
  requests = [
    tuned(make, s, rate=r) for s, r in ((1, 0.05), (2, 0.2), (3, 0.2), (3, 0.05))
  ]
  result = simulate_many(requests, rounds=4, **OPTIONS | others)
  assert counts == [(4, 4)]
  for one, each in zip(result, requests, strict=True):
    assert_alike(one, alone(each, rounds=4, **others))
    assert one.summary['timing'].pop('runs_at_once') == 4


def test_what_is_not_alike_is_in_programs_of_its_own(counts):
  """Methods, and options that are no arguments of programs, part runs."""
  plain, uniform = built('fed_avg'), built('fed_avg', weighting='uniform')
  requests = [run(a, seed) for a in (plain, uniform) for seed in range(2)]
  simulate_many(requests, rounds=1, **OPTIONS)
  assert counts == [(2, 2), (2, 2)]
  with pytest.raises(UserError, match='runs_at_once'):
    fj.simulate_many(plain, [], rounds=1, runs_at_once=-1)


def test_runs_of_several_calls_share_the_programs(counts):
  make = maker('fed_avg')
  first = [tuned(make, s, rate=r) for s in (1, 2) for r in (0.1, 0.2, 0.3)]
  second = [tuned(make, s, rate=0.2) for s in (3, 4, 5)]
  like = [(one['train'], one['test']) for one in (*first, *second)]
  options = {'rounds': 2, 'like': like, **OPTIONS}

  def live_bytes():
    return {x for x in programs._cached.values() if isinstance(x, programs.Program)}

  simulate_many(first, runs_at_once=4, **options)
  before = live_bytes()
  result = simulate_many(second, runs_at_once=4, **options)
  assert live_bytes() <= before
  assert counts == [(4, 4), (2, 4), (3, 4)]
  for one, each in zip(result, second, strict=True):
    assert_alike(one, alone(each, rounds=2))


def test_one_run_that_diverges_does_not_stop_the_others(tmp_path):
  make = maker('fed_avg')
  requests = [
    tuned(make, seed, rate=rate) | {'workdir': tmp_path / str(place)}
    for place, (rate, seed) in enumerate([(0.1, 1), (1e38, 1), (0.1, 2)])
  ]
  first, second, third = simulate_many(requests, rounds=3, **OPTIONS)
  assert isinstance(second, Diverged)
  assert 'lower `learning_rate`' in str(second)
  assert not (tmp_path / '1' / 'summary.json').exists()
  for one, each in ((first, requests[0]), (third, requests[2])):
    assert_alike(one, alone(each | {'workdir': None}, rounds=3))


def files(folder):
  return json.loads((folder / 'summary.json').read_text())


def test_finished_runs_are_kept_and_workdirs_are_those_of_single_runs(tmp_path):
  algorithm = built('fed_avg')
  requests = [run(algorithm, s, workdir=tmp_path / str(s)) for s in range(3)]
  single = alone(requests[0], rounds=2)
  before = files(tmp_path / '0')
  result = simulate_many(requests, rounds=2, **OPTIONS)
  assert files(tmp_path / '0') == before
  assert_same_state(result[0].state, single.state)
  # A run of many is read, and gone on with, as any other.
  again = alone(requests[1], rounds=2)
  assert_same_state(again.state, result[1].state)
  assert again.history == result[1].history
  longer = alone(requests[2], rounds=3)
  assert_alike(longer, alone(requests[2] | {'workdir': None}, rounds=3))


def test_an_interruption_saves_every_run(tmp_path, monkeypatch):
  algorithm = built('fed_avg')
  requests = [run(algorithm, s, workdir=tmp_path / str(s)) for s in range(2)]

  @contextlib.contextmanager
  def after_two_rounds():
    calls = itertools.count(1)
    yield lambda: next(calls) == 2

  monkeypatch.setattr(loop, 'interruptible', after_two_rounds)
  with pytest.raises(Stopped, match='after round 2 of 4'):
    simulate_many(requests, rounds=4, **OPTIONS)
  monkeypatch.undo()
  for each in requests:
    assert (each['workdir'] / 'checkpoints' / '2').is_dir()
  for each, one in zip(
    requests, simulate_many(requests, rounds=4, **OPTIONS), strict=True
  ):
    assert_alike(one, alone(each | {'workdir': None}, rounds=4))


def test_runs_that_were_killed_go_on_to_the_bit(tmp_path):
  """One of them has a checkpoint more than the others."""
  make = maker('fed_avg')
  options = {'rounds': 4, 'checkpoint_every': 1, **OPTIONS}

  def requests(folder):
    return [
      tuned(make, s, rate=0.1) | {'workdir': tmp_path / folder / str(s)}
      for s in (1, 2, 3)
    ]

  whole = simulate_many(requests('whole'), **options)
  simulate_many(requests('parts'), **options | {'rounds': 2})
  simulate_many(requests('parts')[1:2], **options | {'rounds': 3})
  for one, other in zip(
    simulate_many(requests('parts'), **options), whole, strict=True
  ):
    assert_alike(one, other)
  assert_same_state(simulate_many(requests('parts'), **options)[2].state, one.state)


class Counts(fj.Callback):
  """Notes the rounds, and the first number of the state after each."""

  def __init__(self):
    self.seen = []

  def on_round(self, event):
    value = float(jax.tree.leaves(event.state)[0].ravel()[0])
    self.seen.append((event.number, value, len(event.models.names)))
    return fj.Stop('enough') if event.number == 2 and self.ends else None

  ends = False


def test_callbacks_follow_their_own_run():
  algorithm = built('fed_avg')
  own = [Counts() for _ in range(2)]
  own[0].ends = True
  requests = [run(algorithm, s, callbacks=[own[s]]) for s in range(2)]
  short, long = simulate_many(requests, rounds=3, **OPTIONS)
  assert (short.summary['ended'], short.summary['rounds']) == ('enough', 2)
  assert long.summary['rounds'] == 3
  for s, each in enumerate(requests):
    single = Counts()
    single.ends = own[s].ends
    other = alone(each | {'callbacks': [single]}, rounds=3)
    assert_alike((short, long)[s], other)
    np.testing.assert_allclose(own[s].seen, single.seen, rtol=1e-5)


def test_what_cannot_be_side_by_side_is_run_alone(counts):
  plain = built('fed_avg')
  conv = algorithms.build(
    'fed_avg', helpers.local(model='small_cnn', shape=(28, 28, 1))
  )
  decides = plain._replace(between=lambda state, info: (state, info))
  shared = fj.Callback()
  for algorithm, others in (
    (decides, {}),
    (plain, {'later_phases': [Phase(2, *data(5))]}),
    (plain, {'callbacks': [shared]}),
  ):
    simulate_many([run(algorithm, s, **others) for s in (1, 3)], rounds=1, **OPTIONS)
  assert counts == [(1, 1)] * 6
  train = helpers.federation([4, 5], shape=(28, 28, 1))
  spec = spec_of(algorithm=conv, train=train, test=train, rounds=1)
  assert loop.most_at_once(spec) == 1
  assert loop.most_at_once(spec, 3) == 3


def test_runs_whose_program_does_not_fit_are_divided(monkeypatch):
  counts, together = [], loop.run_together

  def limited(specs, splits, count, *args):
    counts.append((len(specs), count))
    if count > 2:
      raise TooLarge('A round', ProgramMemory(1, 1, 0, 1), 2)
    return together(specs, splits, count, *args)

  monkeypatch.setattr(loop, 'run_together', limited)
  requests = [run(built('fed_avg'), seed) for seed in range(4)]
  same = {'algorithm': requests[0]['algorithm']}
  result = simulate_many([r | same for r in requests], rounds=1, **OPTIONS)
  assert counts == [(4, 4), (2, 2), (2, 2)]
  assert [one.summary['timing']['runs_at_once'] for one in result] == [2] * 4


def test_full_batches_and_bytes_are_those_of_the_own_run_beside_larger_clients():
  local = helpers.local(batch_size=0, model='logistic')
  algorithm = algorithms.build('centralized', local)
  requests = [run(algorithm, seed, rounds=2) for seed in (1, 2)]
  for result, one in zip(simulate_many(requests, **OPTIONS), requests, strict=True):
    assert_alike(result, alone(one))
    assert result.summary['costs'] == alone(one).summary['costs']
