"""Selections of clients: by loss, by availability, and user functions."""

import functools

import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.core import prng_streams
from fesem_jax.core.selection import Clients, Selection, cohort_size
from fesem_jax.core.traffic import Sent, Traffic
from fesem_jax.utils.errors import UserError
from tests.support import helpers

NAMES = np.array(['Ann', 'Bob', 'Cid', 'Dan', 'Eve'])
SIZES = [6, 3, 9, 5, 8]


def chosen(selection, number, seed=0):
  """The clients of a round, without losses."""
  rng = prng_streams.host_rng(seed, prng_streams.COHORT, number)
  return selection.ids(number, rng, Clients(NAMES, np.array(SIZES), None)).tolist()


class Seen(fj.Callback):
  """Who took part, in the order of the data, and the model after each round."""

  def __init__(self):
    self.clients, self.models, self.records = [], [], []

  def on_start(self, start):
    self.models.append(
      [np.asarray(x[0]) for x in start.state.params['logits'].values()]
    )

  def on_round(self, event):
    ids = np.asarray(event.drawn.ids)
    numbers = np.asarray(event.arranged[0].client_ids)
    self.clients.append(sorted(numbers[ids[ids < len(SIZES)]].tolist()))
    self.models.append(
      [np.asarray(x[0]) for x in event.state.params['logits'].values()]
    )
    self.records.append(event.record)


@functools.cache
def data_and_method(placement='auto'):
  data = helpers.federation(SIZES)
  data = fj.FederatedData.from_arrays(
    data.x, data.y, SIZES, num_classes=3, info=fj.ClientInfo(NAMES)
  )
  model = fj.models.build('logistic', (6,), 3)
  local = fj.local_training(model, optax.sgd(0.5))._replace(data_placement=placement)
  return data, fj.algorithms.build('fed_avg', local)


def run(selection, rounds=3, placement='auto', **options):
  (data, method), seen = data_and_method(placement), Seen()
  result = fj.simulate(
    method, data, data, rounds=rounds, clients_per_round=selection,
    callbacks=[seen, *options.pop('callbacks', ())], finetune_epochs=0, **options,
  )  # fmt: skip
  return data, seen, result


def reference_choice(data, model, number):
  """Cho et al., Algorithm 1, in float64: d = 4 candidates, S = 3."""
  rng = prng_streams.host_rng(0, prng_streams.COHORT, number)
  share = np.array(SIZES) / sum(SIZES)
  candidates = rng.choice(5, 4, replace=False, p=share)
  losses = {}
  for client in candidates:
    x, y = data.client(client)
    kernel = next(w for w in model if w.ndim == 2).astype(np.float64)
    bias = next(w for w in model if w.ndim == 1).astype(np.float64)
    logits = x.astype(np.float64) @ kernel + bias
    total = np.log(np.exp(logits).sum(axis=1))
    losses[client] = (total - logits[np.arange(len(y)), y]).mean()
  return sorted(sorted(losses, key=losses.get)[-3:])


@pytest.mark.parametrize('placement', ['replicated', 'sharded'])
def test_power_of_choice_takes_the_candidates_of_largest_loss(placement):
  selection = fj.selection.power_of_choice(3, candidates=4)
  data, seen, result = run(selection, placement=placement)
  expected = [reference_choice(data, m, r + 1) for r, m in enumerate(seen.models[:3])]
  assert seen.clients == expected
  assert len(set(map(tuple, expected))) > 1
  model = (6 * 3 + 3) * 4
  for record in result.history[-3:]:
    assert (record['candidates'], record['trained']) == (4, 3)
    assert record['bytes_down'] == 4 * model
    assert record['bytes_up'] == 3 * model + 4 * 4


def test_a_selected_run_resumes_with_the_clients_that_it_would_have_had(tmp_path):
  selection = fj.selection.power_of_choice(2, candidates=4)
  whole = run(selection, rounds=4)[2].history
  for rounds in (2, 4):
    workdir = fj.Workdir(tmp_path, portrait=False)
    result = run(selection, rounds, workdir=workdir)[2].history
  for a, b in zip(whole, result, strict=True):
    assert {k: v for k, v in a.items() if k != 'seconds'} == {
      k: v for k, v in b.items() if k != 'seconds'
    }
  with pytest.raises(UserError, match='clients_per_round'):
    run(2, 5, workdir=tmp_path)


def test_a_user_function_may_return_fewer_clients_or_none():
  def choose(number, rng, clients):
    assert clients.names.tolist() == NAMES.tolist()
    return {1: [1, 2], 2: [], 3: np.array([4])}[number]

  _, seen, result = run(Selection(3, choose))
  assert seen.clients == [[1, 2], [], [4]]
  assert [r['trained'] for r in result.history[-3:]] == [2, 0, 1]
  for a, b in zip(*seen.models[1:3], strict=True):
    np.testing.assert_array_equal(a, b)  # Without clients, nothing changes.


def test_clients_are_available_in_rounds_of_the_trace():
  trace = [('Ann', 1, 2), ('Bob', 2, 3), ('Ann', 4, 4), ('Eve', 2, 2)]
  result = [chosen(fj.selection.available(0, trace), r) for r in range(1, 6)]
  assert result == [[0], [0, 1, 4], [1], [0], []]
  two = fj.selection.available(2, trace)
  drawn = {tuple(sorted(chosen(two, 2, seed))) for seed in range(20)}
  assert drawn == {(0, 1), (0, 4), (1, 4)}


def test_a_round_without_available_clients_sends_no_bytes():
  data, method = data_and_method()

  def round_costs(inputs, drawn):  # Some of those that are drawn send more.
    return Sent(drawn.ids * 10 / len(drawn.ids), 4.0 * np.ones(len(drawn.ids)))

  method = method._replace(traffic=Traffic(round_costs))
  result = fj.simulate(
    method, data, data, rounds=3, finetune_epochs=0,
    clients_per_round=fj.selection.available(0, [('Bob', 1, 1), ('Eve', 3, 3)]),
    callbacks=[fj.callbacks.Costs('phone')],
  )  # fmt: skip
  rounds = result.history[-3:]
  assert [r['trained'] for r in rounds] == [1, 0, 1]
  assert [r['bytes_up'] for r in rounds] == [4, 0, 4]
  assert rounds[1]['bytes_down'] == 0 < rounds[2]['bytes_down']
  assert rounds[1]['simulated_seconds'] < rounds[2]['simulated_seconds']


def test_a_share_is_rounded_to_at_least_one_client():
  for share, count in ((0.3, 2), (0.5, 2), (0.01, 1), (0.99, 5)):
    assert cohort_size(share, 5) == count
  assert [cohort_size(count, 5) for count in (0, 1, 5)] == [0, 1, 5]
  assert run(0.3, rounds=2)[1].clients == run(2, rounds=2)[1].clients


@pytest.mark.parametrize(
  ('subject', 'fail'),
  [
    ('clients_per_round', lambda: fj.selection.power_of_choice(0, candidates=3)),
    ('candidates', lambda: fj.selection.power_of_choice(3, candidates=2)),
    ('candidates', lambda: run(fj.selection.power_of_choice(3, candidates=6))),
    ('mine', lambda: run(Selection(3, lambda *_: [1, 1], 'mine'))),
    ('mine', lambda: run(Selection(2, lambda *_: [0, 1, 2], 'mine'))),
    ('mine', lambda: run(Selection(2, lambda *_: [-1], 'mine'))),
    ("'Zoe'", lambda: run(fj.selection.available(1, [('Ann', 1, 9), ('Zoe', 8, 9)]))),
    ('clients_per_round', lambda: run(Selection(6, lambda *_: []))),
  ],
)
def test_bad_selections_are_named(subject, fail):
  with pytest.raises(UserError, match=subject):
    fail()
