import json
import os
import signal
import threading
import time

import jax
import pytest

import fesem_jax as fj
from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.core.arrangement import arrange, draw_cohort
from fesem_jax.run import programs
from fesem_jax.run.checkpoint import Checkpoints
from fesem_jax.utils.errors import Diverged, UserError
from fesem_jax.utils.interrupts import Stopped
from tests.support import helpers
from tests.support.methods import METHODS
from tests.support.nights import rest_by_night
from tests.support.runs import (
  assert_same_state,
  built,
  federation,
  records,
  simulate,
  simulated,
  simulated_linear,
  without_time,
)


def test_a_run_writes_what_the_contract_says(tmp_path):
  result = simulated_linear(
    rounds=4, workdir=tmp_path, eval_every=2, make_portrait=True
  )
  assert {p.name for p in tmp_path.iterdir()} == {
    '.lock', 'config.json', 'metrics.jsonl', 'summary.json',
    'checkpoints', 'clients.csv', 'clients.npz', 'models.npz',
  }  # fmt: skip
  lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').open()]
  assert [r['round'] for r in lines] == [0, 1, 2, 3, 4]
  assert [r['round'] for r in lines if 'deployed' in r] == [2, 4]
  assert all(r['seconds'] >= 0 for r in lines)
  for record in lines[1:]:
    assert sum(record['cluster_sizes']) == 7
    assert {'train_loss', 'moved', 'objective', 'ari', 'nmi', 'ami'} <= set(record)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary == json.loads(json.dumps(result.summary))
  assert {
    'algorithm', 'dataset', 'partition', 'num_clients', 'num_clusters', 'rounds',
    'seed', 'deployed', 'finetuned', 'unseen', 'clusters', 'timing', 'memory', 'device',
    'versions', 'commit',
  } <= set(summary)  # fmt: skip
  assert (summary['num_clients'], summary['num_clusters']) == (7, 2)
  assert set(summary['clusters']) == {
    'sizes', 'ari', 'nmi', 'ami', 'objective', 'rounds_to_stable'
  }  # fmt: skip
  assert summary['deployed'] == lines[-1]['deployed']
  device = {'platform': 'cpu', 'kind': 'cpu', 'count': 2, 'processes': 1}
  assert summary['device'] == device
  assert summary['memory']['peak_host_bytes'] > 1e7
  assert summary['versions']['jax'] == jax.__version__


@pytest.mark.parametrize(
  ('name', 'clients_per_round'), rest_by_night([('fesem', 3), ('non_fed', 0)])
)
def test_resume_is_bit_identical(name, clients_per_round, tmp_path):
  options = {'clients_per_round': clients_per_round}
  whole = simulated_linear(name, rounds=4, **options)
  simulated_linear(name, rounds=2, workdir=tmp_path, **options)
  # Rounds after the last checkpoint are done again.
  with (tmp_path / 'metrics.jsonl').open('a') as f:
    f.write('{"round": 3, "train_loss": 9}\n{"round": 4, "tra')
  # As in another process, which compiles no start.
  programs.clear()
  rest = simulated_linear(name, rounds=4, workdir=tmp_path, **options)
  assert_same_state(whole.state, rest.state)
  assert without_time(whole.history) == without_time(rest.history)
  assert records(tmp_path) == without_time(whole.history)


@pytest.mark.slow
def test_a_method_that_decides_on_the_host_resumes_as_if_uninterrupted(tmp_path):
  local = helpers.local(devices=2, hidden=())
  algorithm = algorithms.build('fed_cluster', local, **dict(METHODS)['fed_cluster'])

  # An odd stop: FedCluster's check of round 4 comes after it.
  def go(rounds, folder):
    options = {'rounds': rounds, 'eval_every': 0, 'config': {}}
    return simulate(algorithm, *federation(), workdir=folder, **options)

  whole = go(5, tmp_path / 'whole')
  go(3, tmp_path / 'parts')
  rest = go(5, tmp_path / 'parts')
  assert_same_state(whole.state, rest.state)
  last = [without_time(r.history)[-1] for r in (whole, rest)]
  assert last[0] == last[1]


@pytest.mark.parametrize(('name', 'clients_per_round'), [('fesem', 0), ('fed_avg', 3)])
def test_a_round_is_one_call_that_neither_compiles_nor_transfers(
  name, clients_per_round
):
  algorithm, mesh = built(name), built(name).local.mesh
  train, _ = arrange(algorithm.local, *federation())
  key = sharding.replicate(jax.random.key(0), mesh)
  state = jax.jit(algorithm.init)(key, train)
  shardings = jax.tree.map(lambda x: x.sharding, state)
  step = jax.jit(algorithm.step, donate_argnums=0, out_shardings=(shardings, None))
  cohorts = [draw_cohort(0, r, clients_per_round, train, mesh) for r in range(1, 5)]
  state, _ = step(state, train, cohorts[0], key)
  jax.block_until_ready(state)
  compiled, count = [], step._cache_size()

  def listen(event, duration, **_):
    return compiled.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    with jax.transfer_guard_device_to_host('disallow_explicit'):
      for cohort in cohorts[1:]:
        state, info = step(state, train, cohort, key)
      jax.block_until_ready((state, info))
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  assert not [e for e in compiled if 'compile' in e or 'trace' in e]
  assert step._cache_size() == count


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_save_and_say_how_to_continue(number, tmp_path):
  timer = None

  def press():
    # Once the first record is there, a round is surely under way.
    while not (tmp_path / 'metrics.jsonl').exists() or (
      (tmp_path / 'metrics.jsonl').read_text().count('\n') < 3
    ):
      time.sleep(0.01)
    os.kill(os.getpid(), number)

  timer = threading.Thread(target=press)
  timer.start()
  with pytest.raises(Stopped, match='Run the same command again to continue'):
    simulated_linear('fed_avg', rounds=5000, workdir=tmp_path, eval_every=0)
  timer.join()
  done = Checkpoints(tmp_path).latest_round()
  assert done >= 2
  again = simulated_linear('fed_avg', rounds=done + 1, workdir=tmp_path)
  whole = simulated_linear('fed_avg', rounds=done + 1)
  assert_same_state(again.state, whole.state)


@pytest.mark.slow
def test_a_round_in_which_everyone_drops_out_is_no_divergence():
  train, test = federation()
  local = helpers.local(hidden=())._replace(dropout_rate=0.9)
  algorithm = algorithms.build('fed_avg', local)
  options = {'rounds': 12, 'eval_every': 0, 'clients_per_round': 1}
  result = simulate(algorithm, train, test, **options)
  assert 0 in [r['trained'] for r in result.history]
  for record in result.history:  # No loss is not a loss of 0.
    assert (record['train_loss'] is None) == (record['trained'] == 0)


def test_a_method_that_objects_leaves_no_workdir(tmp_path):
  train, test = federation()
  local = helpers.local()
  algorithm = algorithms.build('fesem', local, num_clusters=99)
  with pytest.raises(UserError, match='num_clusters'):
    simulate(algorithm, train, test, rounds=1, workdir=tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_patience_stops_when_clusters_and_objective_stand_still(tmp_path):
  settling = {'rate': 1e-3, 'batch_size': 0, 'eval_every': 0, 'finetune_epochs': 0}
  options = settling | {'rounds': 30, 'patience': 3, 'workdir': tmp_path}
  result = simulated_linear(**options)
  assert result.summary['rounds'] < 30
  assert 'deployed' in result.history[-1]
  # A run that settled is not continued.
  assert simulated_linear(**options).summary['rounds'] == result.summary['rounds']
  assert simulated_linear(rounds=6, **settling).summary['rounds'] == 6


def test_a_run_in_which_all_clients_fail_stops_and_keeps_its_checkpoint(tmp_path):
  with pytest.raises(Diverged, match=r'no client came back.*lower `learning_rate`'):
    simulated('fed_avg', rate=1e30, workdir=tmp_path)
  simulated_linear('fed_avg', rounds=2, workdir=tmp_path / 'b')
  assert Checkpoints(tmp_path / 'b').latest_round() == 2


def test_a_start_in_which_all_clients_fail_is_no_result():
  with pytest.raises(Diverged, match='Round 1: no client came back'):
    simulated('robust', rate=1e30, devices=1, eval_every=0)


def test_models_too_large_to_compare_are_a_divergence():
  # Finite weights whose squares are not; without a hidden layer nothing else fails.
  train, test = federation()
  local = helpers.local(rate=1e25, hidden=())
  algorithm = algorithms.build('fesem', local, num_clusters=2, prox_lambda=0.0)
  with pytest.raises(Diverged, match='too far from their centers'):
    simulate(algorithm, train, test, rounds=1, eval_every=0)


def test_untrained_personal_models_are_counted():
  data = helpers.federation([6] * 8)
  method = algorithms.build('non_fed', helpers.local(model='logistic'))
  drawn = set()

  class Drawn(fj.Callback):
    def on_round(self, event):
      drawn.update(event.cohort.tolist())

  options = {'rounds': 2, 'clients_per_round': 2, 'seed': 1}
  result = simulate(method, data, data, **options, callbacks=[Drawn()])
  places = sorted(drawn)
  assert 2 <= len(places) < 8
  summary = result.summary
  assert summary['trained'] == len(places) / 8
  accuracy = result.clients.deployed_accuracy[places].mean()
  assert summary['trained_deployed']['macro_accuracy'] == pytest.approx(accuracy)
  assert 'trained' not in simulate(method, data, data, rounds=1).summary
