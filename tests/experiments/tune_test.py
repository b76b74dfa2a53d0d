"""--tune: grids, seeds, choices, and what the table says of them."""

import json

import pytest

from experiments import compare, tune
from fesem_jax.analysis import tuning
from fesem_jax.run.results.frames import Recorded
from fesem_jax.utils.errors import UserError, WorkdirError
from tests.experiments.binaries_test import (
  LOGISTIC,
  parsed_flags,  # noqa: F401
)
from tests.support.commands import call


def search_of(**grid):
  return tune.Search(grid, [10_000, 10_001])


@pytest.fixture
def runs(monkeypatch):
  """Replaces runs: `score(config)` is their micro accuracy, None where they diverge."""

  def use(score):
    seen = []

    def run(wanted, *, portraits_of=(), **_):
      assert not portraits_of
      return [outcome(config, folder) for config, folder, _ in wanted]

    def outcome(config, folder):
      seen.append((config, folder))
      try:
        found = score(config)
      except UserError as e:
        return e
      if found is None:
        return Recorded.of(None)
      deployed, finetuned = found if isinstance(found, tuple) else (found, 0.0)
      summary = {
        'deployed': {'micro_accuracy': deployed},
        'finetuned': {'micro_accuracy': finetuned},
      }
      return Recorded('', 0, config, summary, [], None)

    monkeypatch.setattr(tune, 'run_unless_diverged', run)
    return seen

  return use


def test_searches_are_parsed_and_refused(parsed_flags):  # noqa: F811
  assert tune.parse_search('learning_rate:0.01,1') == ('learning_rate', [0.01, 1.0])
  assert tune.parse_search('prox_mu:0.1') == ('prox_mu', [0.1])
  counts = tune.parse_search('clients_per_round:1,0.5,0')[1]  # 1.0 would be ambiguous.
  assert list(map(type, counts)) == [int, float, int]
  for wrong in ('learning_rate', 'rate:1', 'seed:1,2', 'learning_rate:', 'rounds:x'):
    with pytest.raises(UserError):
      tune.parse_search(wrong)
  for wrong in ('learning_rate:0.1,0.1,x', 'rounds:x', 'optimizer:x'):
    flag = wrong.partition(':')[0]
    with pytest.raises(UserError, match=flag):
      tune.parse_search(wrong, 'sweep')


def test_tuning_seeds_are_no_reported_ones(parsed_flags):  # noqa: F811
  def parse(count, reported, texts=('learning_rate:1,2',)):
    return tune.parse(texts, 'deployed', count, reported)

  assert parse(3, range(5, 10)).seeds == [10_005, 10_006, 10_007]
  assert parse(3, range(5), texts=['']) is None
  # Two flags make a grid; a flag that is given again replaces that of a preset.
  texts = ['learning_rate:1,2', 'prox_mu:1', 'learning_rate:3']
  found = parse(1, range(5), texts)
  assert found.grid == {'learning_rate': [3.0], 'prox_mu': [1.0]}


def summary_of(accuracy):
  """What a search looks at of a run; None of one that diverged."""
  return None if accuracy is None else {'deployed': {'micro_accuracy': accuracy}}


def test_an_empty_search_drops_those_of_a_preset(parsed_flags):  # noqa: F811
  def parsed(*texts):
    return tune.parse(texts, 'deployed', 1, range(1))

  assert parsed('learning_rate:1', '') is None
  assert parsed('learning_rate:1', '', 'batch_size:5').grid == {'batch_size': [5]}


def test_the_lowest_error_of_a_regression_is_chosen():
  def run(values, seed):
    errors = {'micro_rmse': abs(values['x'] - 2.0), 'micro_r2': 0.0}
    return {'task': 'regression', 'deployed': errors}

  found = tuning.search(tuning.points({'x': [1, 2, 3]}), [0], run)
  assert found.values == {'x': 2}
  assert found.figure.name == 'rmse'


def test_a_search_takes_the_best_mean_over_its_seeds():
  scores = {(0.1, 1): 0.9, (0.1, 2): 0.1, (0.3, 1): 0.6, (0.3, 2): 0.6, (1.0, 1): 1.0}
  seen = []

  def score(values, seed):
    seen.append((values['rate'], seed))
    return summary_of(scores.get(seen[-1]))

  found = tuning.search(tuning.points({'rate': [0.1, 0.3, 1.0]}), [1, 2], score)
  assert seen == [(rate, seed) for rate in (0.1, 0.3, 1.0) for seed in (1, 2)]
  assert found.values == {'rate': 0.3}  # 1 diverged with the second seed.
  assert (found.runs, found.at_edge) == (6, [])
  assert [t.mean for t in found.tried] == [0.5, 0.6, None]


def test_where_clients_are_bad_the_honest_ones_decide():
  scores = {1: (0.9, 0.2), 2: (0.5, 0.6)}

  def score(values, seed):
    everyone, honest = map(summary_of, scores[values['rate']])
    return everyone | {'honest': honest}

  found = tuning.search(tuning.points({'rate': [1, 2]}), [0], score)
  assert found.values == {'rate': 2}
  assert found.honest


def test_points_that_cannot_run_leave_the_others_to_choose_from():
  def run(values, seed):
    if values['rate'] > 1:
      raise UserError(f'rate {values["rate"]} is too large.')
    return summary_of(values['rate'])

  tries = [{'rate': rate} for rate in (0.5, 1, 3)]
  found = tuning.search(tries, [0], run)
  assert found.values == {'rate': 1}
  assert [t.values['rate'] for t in found.tried] == [0.5, 1]
  assert [point for point, _ in found.refused] == [{'rate': 3}]
  with pytest.raises(UserError, match='rate 3 is too large'):
    tuning.search(tries[2:], [0], run)

  def of_another_run(values, seed):
    raise WorkdirError('`workdir=runs` holds another run.')

  with pytest.raises(WorkdirError):  # It says nothing of the point.
    tuning.search(tries, [0], of_another_run)


@pytest.mark.parametrize(
  ('values', 'best', 'at_edge'),
  [
    ([0.1, 0.3, 1.0], 0.3, False),
    ([0.3, 1.0, 0.1], 0.1, True),
    ([0.1, 1.0, 0.3], 1.0, True),
    ([0, 0.1, 1], 0, False),  # No penalty: nothing lies below.
    ([-1, 0, 1], -1, True),
    ([0.1], 0.1, False),  # No grid.
    (['sgd', 'adam'], 'adam', False),
    ([False, True], True, False),
  ],
)
def test_values_at_the_edge_of_their_grid_are_named(values, best, at_edge):
  found = tuning.search(
    tuning.points({'x': values}),
    [0],
    lambda point, seed: summary_of(float(point['x'] == best)),
  )
  assert found.values == {'x': best}
  assert found.at_edge == (['x'] if at_edge else [])


def test_grids_are_products_of_what_a_method_has(parsed_flags, runs, tmp_path):  # noqa: F811
  seen = runs(lambda c: c['learning_rate'] + (c.get('server_learning_rate') or 0))
  listed = [
    'fed_avg', 'fesem(2)', 'fed_opt(server_optimizer=adam)',
    'fed_opt(server_optimizer=adam;server_learning_rate=0.5)',
  ]  # fmt: skip
  by_label = compare.configurations(listed, 2, {})
  grid = search_of(learning_rate=[0.1, 0.2], server_learning_rate=[0.01, 0.1, 1.0])
  choices = tune.tuned(by_label, grid, tmp_path)
  # FeSEM's server takes the mean here, and one row has a server rate of its own.
  counts = {la: (c.runs, c.values) for la, c in choices.items()}
  one = {'learning_rate': 0.2}
  assert counts == {
    'fed_avg': (4, one), 'fesem(2)': (4, one),
    'fed_opt(server_optimizer=adam)': (12, one | {'server_learning_rate': 1.0}),
    'fed_opt(server_optimizer=adam;server_learning_rate=0.5)': (4, one),
  }  # fmt: skip
  for config, folder in seen:
    assert (config['evaluate_on'], config['eval_every']) == ('validation', 0)
    assert config['seed'] in (10_000, 10_001)
    assert folder.name == f'seed{config["seed"]}'
  assert len({folder for _, folder in seen}) == len(seen)
  final = tune.applied(by_label, choices)['fed_opt(server_optimizer=adam)']
  assert [c['seed'] for c in final] == [0, 1]
  assert {(c['server_learning_rate'], c['evaluate_on']) for c in final} == {(1, 'test')}
  # Where the server optimizer is tuned too, the mean is one point.
  grid = {'server_optimizer': ['mean', 'adam'], 'server_learning_rate': [0.1, 1.0]}
  assert tune.points('fesem(2)', by_label['fesem(2)'][0], grid) == [
    {'server_optimizer': 'mean'},
    {'server_optimizer': 'adam', 'server_learning_rate': 0.1},
    {'server_optimizer': 'adam', 'server_learning_rate': 1.0},
  ]


def test_a_flag_that_no_method_leaves_open_is_refused(parsed_flags, runs, tmp_path):  # noqa: F811
  seen = runs(lambda c: 1.0)
  for method in ('fed_avg', 'fesem(2)', 'scaffold(server_learning_rate=0.5)'):
    by_label = compare.configurations([method], 1, {})
    with pytest.raises(UserError, match='server_learning_rate'):
      tune.tuned(by_label, search_of(server_learning_rate=[0.1, 1.0]), tmp_path)
  assert not seen


def test_tuning_leaves_alone_what_has_its_own_value_or_cannot_run(
  parsed_flags, runs, capsys, tmp_path  # noqa: F811
):  # fmt: skip
  methods = ['fed_sgd(learning_rate=0.5)', 'fed_avg', 'fed_cluster', 'fed_prox']
  table = compare.configurations(methods, 1, {})

  def score(config):
    if config['algorithm'] == 'fed_cluster':
      raise UserError('It needs everyone, not `clients_per_round`.')
    return None if config['algorithm'] == 'fed_prox' else config['learning_rate']

  runs(score)
  choices = tune.tuned(table, search_of(learning_rate=[0.2, 0.3]), tmp_path)
  assert 'fed_cluster cannot be tuned: It needs everyone' in capsys.readouterr().out
  with pytest.raises(UserError, match='fed_cluster cannot be tuned: It needs'):
    tune.check(choices)
  chosen = tune.applied(table, choices)
  given = {la: configs[0]['learning_rate'] for la, configs in table.items()}
  values = {la: configs[0]['learning_rate'] for la, configs in chosen.items()}
  assert values == given | {'fed_avg': 0.3}
  held = json.loads((tmp_path / 'tune.json').read_text())
  assert list(held) == ['fed_avg', 'fed_prox']
  assert held['fed_avg']['chosen'] == {'learning_rate': 0.3}
  assert held['fed_avg']['tried'][0]['validation_micro_accuracy'] == 0.2
  assert held['fed_prox']['tried'][0]['of_seeds'] == [None, None]
  # Those of other commands stay; a choice that was made again is the new one.
  tune.tuned({'fed_avg': table['fed_avg']}, search_of(learning_rate=[0.1]), tmp_path)
  again = json.loads((tmp_path / 'tune.json').read_text())
  assert again['fed_prox'] == held['fed_prox']
  assert again['fed_avg']['chosen'] == {'learning_rate': 0.1}


@pytest.mark.parametrize(('by', 'best'), [('finetuned', 0.3), ('deployed', 0.2)])
def test_tuning_ranks_by_what_it_is_told(
  by, best, parsed_flags, runs, capsys, tmp_path  # noqa: F811
):  # fmt: skip
  table = compare.configurations(['fed_avg'], 1, {})
  runs(lambda c: (1 - c['learning_rate'], c['learning_rate']))
  search = tune.Search({'learning_rate': [0.2, 0.3]}, [7], by)
  choices = tune.tuned(table, search, tmp_path)
  assert choices['fed_avg'].values == {'learning_rate': best}
  word = {'finetuned': 'fine-tuned', 'deployed': 'deployed'}[by]
  assert f'learning_rate={best}, by {word} micro' in capsys.readouterr().out


def test_tuning_looks_at_validation_examples_only(tmp_path):
  flags = (
    '--algorithms=fed_avg,fesem(2)', '--num_seeds=1', '--tune=prox_lambda:0.01,1e30',
    '--tune_seeds=1', '--target=0.3', '--workdir=t',
  )  # fmt: skip
  done = call('compare', *LOGISTIC, *flags, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert 'rounds to 30 %' in (tmp_path / 't/table.md').read_text()
  # The data are described once for each method; each run has its score.
  lines = done.stdout.splitlines()
  tuning = [line for line in lines if line.startswith('[tuning fesem(2), run ')]
  first = '[tuning fesem(2), run 1 of 2: prox_lambda=0.01, seed 10000]'
  assert [line for line in tuning if ' on digits: ' in line] == [tuning[0]]
  assert tuning[-1].startswith(f'{first} deployed micro-accuracy ')
  assert ' s; run 1 of 4, about ' in tuning[-1]
  assert 'tuning fesem(2), run 2 of 2: prox_lambda=1e+30, seed 10000 diverged' in (
    done.stdout
  )
  tuned = json.loads((tmp_path / 't/tune.json').read_text())
  assert list(tuned) == ['fesem(2)']  # FedAvg has no lambda.
  assert tuned['fesem(2)']['chosen'] == {'prox_lambda': 0.01}
  assert tuned['fesem(2)']['seeds'] == [10_000]
  assert tuned['fesem(2)']['tried'][1]['of_seeds'] == [None]  # Diverged.
  search = tmp_path / 't/tune/fesem(2)/prox_lambda=0.01/seed10000/config.json'
  assert json.loads(search.read_text())['evaluate_on'] == 'validation'
  held = json.loads(search.with_name('summary.json').read_text())
  assert held['evaluated_on'] == 'validation'
  final = tmp_path / 't/fesem(2)/seed0/config.json'
  assert json.loads(final.read_text())['evaluate_on'] == 'test'
  table = (tmp_path / 't/table.md').read_text()
  assert 'prox_lambda=0.01 |' in table
