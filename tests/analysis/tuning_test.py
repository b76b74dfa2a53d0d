"""Values chosen by the mean over seeds."""

import json
from types import SimpleNamespace

import pytest

from fesem_jax.analysis import loop, tuning
from fesem_jax.data.splits import Phase
from fesem_jax.run.configuration import digest_of_data
from fesem_jax.run.results.frames import Recorded
from fesem_jax.utils.errors import UserError, WorkdirError
from tests.support import helpers


def run(accuracy, **summary):
  """A run of an accuracy, None where it diverged."""
  if accuracy is None:
    return Recorded.of(None, '', 0, {})
  summary = {'deployed': {'micro_accuracy': accuracy}} | summary
  return Recorded('', 0, {}, summary, [], None)


def choose(outcomes, by='deployed'):
  """The choice among values of x, with outcomes of each seed."""
  seeds = range(len(next(iter(outcomes.values()))))
  points = [{'x': x} for x in outcomes]
  return tuning.choose(points, list(outcomes.values()), tuning.Search({}, seeds, by))


def test_the_best_mean_over_seeds_is_chosen():
  runs = {0.1: [run(0.9), run(0.1)], 0.3: [run(0.6)] * 2, 1.0: [run(1.0), run(None)]}
  choice = choose(runs)
  assert choice.values == {'x': 0.3}  # 1 diverged with the second seed.
  assert choice.means == [0.5, 0.6, None]
  assert choice.entry()['tried'][2] == {
    'values': {'x': 1.0}, 'validation_micro_accuracy': None, 'of_seeds': [1.0, None],
  }  # fmt: skip
  assert choose({1: [run(None)]}).values == {}


def test_the_metric_of_the_task_of_honest_clients_decides():
  errors = [
    Recorded('', 0, {}, {'task': 'regression', 'deployed': {'micro_rmse': x}}, [], None)
    for x in (1.0, 0.0, 1.0)
  ]
  choice = choose({x: [error] for x, error in enumerate(errors)})
  assert (choice.values, choice.metric.name) == ({'x': 1}, 'rmse')
  tuned = {'finetuned': {'micro_accuracy': 0.1}}, {'finetuned': {'micro_accuracy': 0.2}}
  finetuned = {1: [run(0.9, **tuned[0])], 2: [run(0.5, **tuned[1])]}
  assert choose(finetuned, 'finetuned').values == {'x': 2}
  honest = [{'deployed': {'micro_accuracy': x}} for x in (0.2, 0.6)]
  bad = {1: [run(0.9, honest=honest[0])], 2: [run(0.5, honest=honest[1])]}
  assert choose(bad).values == {'x': 2}


def test_points_that_cannot_run_leave_the_others_to_choose_from():
  error = UserError('x: is too large')
  choice = choose({1: [run(0.5)], 3: [error]})
  assert (choice.tried, choice.refused) == ([{'x': 1}], (({'x': 3}, error),))
  with pytest.raises(UserError, match='x'):
    choose({3: [error]})
  with pytest.raises(WorkdirError):  # Not a property of the point.
    choose({1: [run(0.5)], 3: [WorkdirError('workdir: holds another run')]})


@pytest.mark.parametrize(
  ('values', 'best', 'at_edge'),
  [
    ([0.1, 0.3, 1.0], 0.3, []),
    ([0.3, 1.0, 0.1], 0.1, ['x']),
    ([0.1, 1.0, 0.3], 1.0, ['x']),
    ([0, 0.1, 1], 0, []),  # No penalty: nothing is below.
    ([-1, 0, 1], -1, ['x']),
    ([0.1], 0.1, []),
    (['sgd', 'adam'], 'adam', []),
    ([False, True], True, []),
  ],
)
def test_values_at_the_edge_of_their_grid_are_named(values, best, at_edge):
  choice = choose({x: [run(float(x == best))] for x in values})
  assert (choice.values, choice.at_edge) == ({'x': best}, at_edge)


def test_finished_tuning_runs_are_recognized(tmp_path):
  train, test, *unseen = (helpers.federation([4, 6], seed=s) for s in range(4))
  config = {'rounds': 2, 'learning_rate': 0.1}
  digest = digest_of_data(train, test, *unseen)
  saved = config | {'data_digest': digest, 'code': {}}
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  fields = {'workdir': tmp_path, 'unseen': unseen, 'config': config, 'rounds': 2}

  def is_tuned(test=test, **changes):
    phases = [Phase(1, train, test)]
    return loop._is_tuned(SimpleNamespace(phases=phases, **fields | changes))

  assert not is_tuned()
  (tmp_path / 'summary.json').write_text('{"rounds": 2}')
  assert is_tuned()
  with pytest.raises(WorkdirError, match='learning_rate'):
    is_tuned(config=config | {'learning_rate': 0.3})
  with pytest.raises(WorkdirError, match='data'):
    is_tuned(train)
  assert not is_tuned(rounds=3)
  assert not tmp_path.exists()
