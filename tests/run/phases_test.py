"""Runs whose data change at the beginning of some rounds."""

import dataclasses

import numpy as np
import pytest

from fesem_jax.data import Phase, phases_with_true_groups
from fesem_jax.run import programs
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.runs import (
  GROUPS,
  assert_same_state,
  built,
  federation,
  records,
  simulate,
  simulated_linear,
  without_time,
)


def moved(split):
  """The same examples with other labels, of clients in one group."""
  y = (np.asarray(split.y) + 1) % helpers.CLASSES
  one = np.zeros(len(GROUPS), int)
  return dataclasses.replace(
    split, y=y, info=dataclasses.replace(split.info, clusters=one)
  )


def later(first_round=3):
  return Phase(first_round, *map(moved, federation()))


def test_rounds_train_and_measure_on_the_data_of_their_phase():
  plain = simulated_linear(rounds=2)
  changed = simulated_linear(rounds=4, later_phases=[later()])
  # Of other data from round 3 on, and with their clusters as the true ones.
  first, last = without_time(changed.history)[:3], changed.history[-1]
  assert first == without_time(plain.history)
  assert first[2]['ari'] is not None
  unchanged = simulated_linear(rounds=4)
  assert changed.history[3]['train_loss'] > unchanged.history[3]['train_loss']
  assert last['deployed'] != unchanged.history[-1]['deployed']
  # A phase of the same data changes nothing.
  same = simulated_linear(rounds=4, later_phases=[Phase(3, *federation())])
  assert without_time(same.history) == without_time(unchanged.history)
  assert_same_state(same.state, unchanged.state)
  # Only what is measured on changes: the models do not.
  train, test = federation()
  measured = simulated_linear(rounds=4, later_phases=[Phase(4, train, moved(test))])
  assert_same_state(measured.state, unchanged.state)
  assert without_time(measured.history)[:4] == without_time(unchanged.history)[:4]
  assert measured.history[4]['deployed'] != unchanged.history[4]['deployed']
  # Clusters are compared with the groups of their round.
  assert changed.history[4]['ari'] != unchanged.history[4]['ari']


def test_reports_are_of_the_rounds_since_the_last_change():
  train, test = federation()
  changed = simulated_linear(
    rounds=4, seed=1, later_phases=[Phase(3, train, moved(test)), later(9)]
  )
  of_rounds = {r['round']: r['deployed'] for r in changed.history[1:]}
  values = {n: scores['micro_accuracy'] for n, scores in of_rounds.items()}
  assert max(values, key=lambda n: values[n]) < 3  # On the labels that it trained on.
  reports = changed.summary['reports']
  assert reports['best']['deployed']['round'] >= 3
  assert reports['mean10']['evaluations'] == 2
  unchanged = simulated_linear(rounds=4).summary['reports']
  assert unchanged['mean10']['evaluations'] == 4


@pytest.mark.parametrize('stop', [2, 3])
def test_a_run_resumes_in_its_phase_to_the_bit(stop, tmp_path):
  options = {'later_phases': [later()], 'clients_per_round': 3}
  whole = simulated_linear(rounds=4, **options)
  simulated_linear(rounds=stop, workdir=tmp_path, **options)
  programs.clear()
  rest = simulated_linear(rounds=4, workdir=tmp_path, **options)
  assert_same_state(whole.state, rest.state)
  assert records(tmp_path) == without_time(whole.history)
  with pytest.raises(UserError, match='data_change_in'):
    simulated_linear(
      rounds=5, workdir=tmp_path, later_phases=[later(5)], clients_per_round=3
    )


def test_clients_of_the_oracle_move_with_their_groups(tmp_path):
  groups = np.array(GROUPS)
  groups[:3] = 1 - groups[:3]

  def regrouped(split):
    return dataclasses.replace(
      split, info=dataclasses.replace(split.info, clusters=groups)
    )

  splits = federation()
  changed = Phase(3, *map(regrouped, splits))
  phases = phases_with_true_groups([Phase(1, *splits), changed])
  (_, train, test), *later_ones = phases
  options = {'later_phases': later_ones, 'workdir': tmp_path}
  for rounds in (2, 4):  # Also if the run ended before its data changed.
    result = simulate(built('oracle'), train, test, rounds=rounds, **options)
  assert [r['moved'] for r in result.history[1:]] == [0, 0, 3, 0]
  assert result.summary['clusters']['rounds_to_stable'] == 3
  whole = simulate(built('oracle'), train, test, rounds=4, later_phases=later_ones)
  assert without_time(whole.history) == records(tmp_path)


def test_a_run_without_its_summary_is_measured_on_the_data_of_its_last_phase(tmp_path):
  """As one that was killed after its last checkpoint."""
  options = {'rounds': 3, 'later_phases': [later()], 'workdir': tmp_path}
  whole = simulated_linear(**options)
  (tmp_path / 'summary.json').unlink()
  again = simulated_linear(**options)
  assert again.summary['deployed'] == whole.summary['deployed']
  assert again.clients.equals(whole.clients)
