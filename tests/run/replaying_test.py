"""One client's local training of a round again, against float64 SGD and the run."""

import contextlib
import json

import jax
import numpy as np
import pytest

import fesem_jax as fj
from experiments.replay import as_text
from fesem_jax.core import prng_streams
from fesem_jax.run.replay_results import Replay, Training
from fesem_jax.run.rounds import keys_of_run
from tests.support import helpers, reference, runs
from tests.support.commands import call

CHOSEN = {'rounds': 4, 'eval_every': 2, 'clients_per_round': 4, 'checkpoint_every': 2}
CHEAP = {
  'config': {'seed': 0, 'clients_per_round': 0}, 'finetune_epochs': 0, 'eval_every': 0
}  # fmt: skip


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run of FeSEM that keeps all clients' models: result, workdir, method, data."""
  folder = tmp_path_factory.mktemp('replayed') / 'run'
  made = runs.simulated_linear(workdir=folder, **CHOSEN)
  method = runs.built('fesem', hidden=())
  return made, folder, method, runs.federation()[0]


def replayed(run, number):
  """The first client by size that was drawn in a round, and its replay."""
  _, folder, method, train = run
  for i in np.argsort(-np.array(runs.SIZES)):
    with contextlib.suppress(fj.UserError):  # Those that were not drawn.
      return int(i), fj.replay(
        method, train, folder, round=number, client=f'c{i}', clients_per_round=4
      )
  raise AssertionError(number)


def test_steps_are_those_of_sgd_on_the_loss_with_its_penalty(run):
  _, _, method, train = run
  i, found = replayed(run, 3)
  (training,) = found.trainings
  assert (found.since, found.same_records, found.same_state) == (2, True, None)
  key = keys_of_run(0, method.local.mesh)[prng_streams.ROUNDS]
  key = jax.random.fold_in(key, 3)
  batches = helpers.batches(train, method.local.schedule, i, key)
  start = reference.from_params(training.start)
  assert len(training.loss) == len(batches) == -(-runs.SIZES[i] // 4)
  models = [start] + [
    reference.local_sgd(start, batches[: t + 1], 0.1, 0.01)[0]
    for t in range(len(batches))
  ]
  for t, (x, y) in enumerate(batches):
    loss, gradient = reference.loss_and_gradient(models[t], x, y)
    np.testing.assert_allclose(training.loss[t], loss, rtol=1e-5)
    norm = np.linalg.norm(reference.flat(gradient))
    np.testing.assert_allclose(training.gradient[t], norm, rtol=1e-5)
    moved = np.linalg.norm(reference.flat(models[t + 1]) - reference.flat(start))
    np.testing.assert_allclose(training.distance[t], moved, rtol=1e-4)
  assert training.first_bad_step is None


def test_it_ends_where_the_run_did_bit_for_bit(run):
  made, *_ = run
  i, found = replayed(run, 4)
  (training,) = found.trainings
  assert (found.since, found.same_records, found.same_state) == (2, True, True)
  assert training.difference == 0.0
  kept = jax.tree.map(lambda x: np.asarray(x)[made.places[i]], made.state.client_params)
  for a, b in zip(jax.tree.leaves(training.end), jax.tree.leaves(kept), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.nightly
def test_a_method_that_trains_twice_with_parts_of_the_model(tmp_path):
  method, (train, _) = runs.built('fed_rep'), runs.federation()
  runs.simulated('fed_rep', workdir=tmp_path, rounds=1, **CHEAP)
  rounds = fj.replay(method, train, tmp_path, round=1, client='c3').trainings
  head, body = rounds
  assert (len(head.loss), len(body.loss)) == (5 * 4, 4)
  for training, fixed in ((head, 'dense0'), (body, 'logits')):
    assert training.difference < 1e-6
    assert all(training.start[fixed]['bias'] == training.end[fixed]['bias'])
  np.testing.assert_array_equal(
    head.end['logits']['bias'], body.start['logits']['bias']
  )


def test_a_method_that_trains_several_models_of_each_client_is_refused(tmp_path):
  method, (train, _) = runs.built('fed_em', hidden=()), runs.federation()
  runs.simulated_linear('fed_em', workdir=tmp_path, rounds=1, **CHEAP)
  with pytest.raises(fj.UserError, match='replay'):
    fj.replay(method, train, tmp_path, round=1, client='c3')


def test_mistakes_end_in_one_sentence(run, tmp_path):
  _, folder, method, train = run
  asked = {'round': 1, 'client': 'c1', 'clients_per_round': 4}
  for change, name in (
    ({'round': 5}, 'round'), ({'round': 0}, 'round'), ({'client': 'x'}, 'client'),
  ):  # fmt: skip
    with pytest.raises(fj.UserError, match=name):
      fj.replay(method, train, folder, **asked | change)
  with pytest.raises(fj.UserError, match='workdir'):
    fj.replay(method, train, tmp_path, **asked)
  ids = range(7)  # Of whom four are drawn.
  with pytest.raises(fj.UserError, match='not in round 2'):
    _ = [
      fj.replay(method, train, folder, **asked | {'client': f'c{i}', 'round': 2})
      for i in ids
    ]


def test_another_method_than_that_of_the_run_is_refused(tmp_path):
  """The round after the last one has no record that could differ."""
  train, test = runs.federation()
  slow, fast = (
    fj.algorithms.fed_avg(helpers.local(rate=rate, model='logistic'))
    for rate in (0.1, 0.5)
  )
  runs.simulate(slow, train, test, rounds=1, workdir=tmp_path, finetune_epochs=0)
  (tmp_path / 'summary.json').unlink()
  asked = {'round': 2, 'client': 'c1'}
  with pytest.raises(fj.UserError, match='code of the round differs'):
    fj.replay(fast, train, tmp_path, **asked)
  assert fj.replay(slow, train, tmp_path, **asked).arrived


FLAGS = (
  '--dataset=synthetic_linear', '--num_clients=6', '--examples_per_client=8',
  '--partition_groups=2', '--model=mlp', '--hidden=4', '--rounds=2', '--batch_size=4',
  '--eval_every=0', '--algorithm=fed_avg',
)  # fmt: skip


@pytest.mark.nightly
def test_the_binaries_record_time_and_replay_clients(tmp_path):
  watched = ('--client_metrics_every=2', '--device_profile=phone', '--workdir=a')
  made = call('run', *FLAGS, *watched, cwd=tmp_path)
  assert made.returncode == 0, made.stderr
  config = json.loads((tmp_path / 'a/config.json').read_text())
  assert config['device_profile'] == 'phone'
  assert 'client_metrics_every' not in config
  run = fj.load_run(tmp_path / 'a')
  assert run.client_history.rounds == [2]
  assert run.summary['costs']['simulated_seconds'] > 20  # 10 s a round and more.
  assert 'to clients and' in made.stdout
  one = ('--round=2', '--client=client0', '--output=new/folder/steps.csv')
  shown = call('replay', 'a', *one, cwd=tmp_path)
  assert shown.returncode == 0, shown.stderr
  assert 'as in metrics.jsonl, as in its checkpoint' in shown.stdout
  steps = np.genfromtxt(tmp_path / 'new/folder/steps.csv', delimiter=',', names=True)
  rows = run.client_history.of('client0')
  assert len(steps) == rows['steps'][0]
  np.testing.assert_allclose(steps['loss'].mean(), rows['loss'][0], rtol=0.3)
  refused = call('run', *FLAGS, '--workdir=a', cwd=tmp_path)
  assert 'device_profile' in refused.stderr
  broken = call('run', *FLAGS, '--learning_rate=1e30', '--workdir=b', cwd=tmp_path)
  assert 'finite' in broken.stderr
  shown = call('replay', 'b', '--round=1', '--client=client0', cwd=tmp_path)
  assert 'After step' in shown.stdout, shown.stderr
  assert 'a parameter is not finite.' in shown.stdout
  for arguments, message in (
    (['a', '--round=3', '--client=client0'], 'round'),
    (['a'], '--client: '),
    ([], 'workdir: '),
  ):
    told = call('replay', *arguments, cwd=tmp_path)
    assert told.returncode == 1
    assert message in told.stderr


@pytest.mark.nightly
def test_a_run_of_the_oracle_is_replayed_with_its_groups(tmp_path):
  flags = (*FLAGS[:-1], '--algorithm=oracle', '--workdir=a')
  made = call('run', *flags, cwd=tmp_path)
  assert made.returncode == 0, made.stderr
  shown = call('replay', 'a', '--round=2', '--client=client0', cwd=tmp_path)
  assert 'as in metrics.jsonl' in shown.stdout, shown.stderr


def test_of_a_method_that_decides_within_a_round_it_says_why_not(run):
  _, folder, method, train = run

  def step(state, *args):
    return jax.lax.cond(state.rounds > 9, method.step, method.step, state, *args)

  deciding = method._replace(step=step)
  i, _ = replayed(run, 3)
  asked = {'round': 3, 'client': f'c{i}', 'clients_per_round': 4}
  with pytest.raises(fj.UserError, match='branches'):
    fj.replay(deciding, train, folder, **asked)


def test_only_clients_whose_updates_arrive_train_in_a_round_of_fed_buff(tmp_path):
  train, test = (
    helpers.federation(sizes[:4]) for sizes in (runs.SIZES, runs.TEST_SIZES)
  )
  method = fj.algorithms.build(
    'fed_buff', helpers.local(devices=2, hidden=()), buffer_size=2, concurrency=3
  )
  runs.simulated(method, (train, test), workdir=tmp_path, rounds=3, **CHEAP)
  found = [
    fj.replay(method, train, tmp_path, round=3, client=f'c{i}') for i in range(4)
  ]
  arrived = [i for i, each in enumerate(found) if each.arrived]
  assert len(arrived) == 2
  for i, each in enumerate(found):
    assert each.same_records
    assert len(each.trainings) == each.arrived
    if each.arrived:
      (training,) = each.trainings
      assert training.difference == 0.0
      assert len(training.loss) == -(-runs.SIZES[i] // 4)


@pytest.mark.nightly
def test_clients_with_rates_and_epochs_of_their_own_take_their_own_steps(tmp_path):
  train, test = runs.federation()
  rates, epochs = 0.5 + np.arange(7) / 4, 1 + np.arange(7) % 3
  local = helpers.local(epochs=3)._replace(work=fj.ClientWork(rates, epochs))
  method = fj.algorithms.build('fesem', local, num_clusters=2)
  runs.simulated(method, (train, test), workdir=tmp_path, rounds=2, **CHEAP)
  for i in (2, 6):
    found = fj.replay(method, train, tmp_path, round=2, client=f'c{i}')
    (training,) = found.trainings
    assert found.same_records
    assert training.difference == 0.0
    key = keys_of_run(0, local.mesh)[prng_streams.ROUNDS]
    key = jax.random.fold_in(key, 2)
    schedule = local.schedule._replace(epochs=int(epochs[i]))
    batches = helpers.batches(train, schedule, i, key)
    assert len(training.loss) == len(batches)
    start = reference.from_params(training.start)
    last, _ = reference.local_sgd(start, batches, 0.1 * rates[i], 0.01)
    moved = np.linalg.norm(reference.flat(last) - reference.flat(start))
    np.testing.assert_allclose(training.distance[-1], moved, rtol=1e-4)


def test_weights_of_clients_from_python_are_those_of_the_run(tmp_path):
  train, test = runs.federation()
  local = helpers.local(devices=2, hidden=())
  method = fj.algorithms.build('fed_avg', local, weighting=[1, 2, 3, 4, 5, 6, 7])
  runs.simulated(method, (train, test), workdir=tmp_path, rounds=2, **CHEAP)
  found = fj.replay(method, train, tmp_path, round=2, client='c4')
  assert found.same_records
  config = json.loads((tmp_path / 'config.json').read_text())
  changing = json.dumps(config | {'data_change_in': [2]})
  (tmp_path / 'config.json').write_text(changing)
  with pytest.raises(fj.UserError, match='workdir'):
    fj.replay(method, train, tmp_path, round=2, client='c4')


def test_a_result_that_differs_is_not_called_rounding():
  end = {'w': np.ones(3, np.float32)}
  empty = np.zeros(1)
  for difference, told in (
    (1e-6, 'up to rounding: parameters differ by at most 1e-06'),
    (0.07, 'DIFFERS from that of the round: parameters by up to 0.07'),
  ):
    training = Training(empty, empty, empty, end, end, None, difference)
    found = Replay(1, 'a', True, [training], 0, None, None)
    assert told in as_text(found)
