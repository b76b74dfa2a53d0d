"""Every client's history, and what rounds cost, of runs and their resumption."""

import shutil

import jax
import numpy as np
import pandas
import pytest

import fesem_jax as fj
from fesem_jax.core import device_profiles, prng_streams, traffic
from fesem_jax.core.algorithm import Clusters, RoundInfo
from fesem_jax.run.callbacks import ClientHistory, Costs
from fesem_jax.run.callbacks.client_history import part_of
from fesem_jax.run.results import client_history
from fesem_jax.run.results.client_history import COLUMNS
from tests.support import runs

SIZES, M = np.array(runs.SIZES), len(runs.SIZES)
CHOSEN = {'rounds': 4, 'eval_every': 2, 'clients_per_round': 4}
NEW = {'bytes_down', 'bytes_up', 'start_bytes_down', 'start_bytes_up'}


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
  """A run of four rounds whose clients are recorded: result, workdir, columns."""
  folder = tmp_path_factory.mktemp('recorded') / 'run'
  watching = [ClientHistory(), Costs('broadband')]
  made = runs.simulated_linear(workdir=folder, callbacks=watching, **CHOSEN)
  return made, folder, fj.load_run(folder).client_history


def by_round(frame):
  return [
    {n: x.to_numpy() for n, x in frame[frame['round'] == r].items()}
    for r in range(1, 5)
  ]


def test_rows_are_what_the_rounds_report(recorded):
  made, _, columns = recorded
  assert {name: x.dtype for name, x in columns.items() if name != 'client'} == {
    name: np.dtype(dtype) for name, dtype in COLUMNS.items() if name != 'client'
  }
  for record, rows in zip(made.history[1:], by_round(columns), strict=True):
    assert rows['client'].tolist() == made.clients['client'].tolist()
    took = rows['took_part']
    assert took.sum() == record['trained'] == 4
    np.testing.assert_array_equal(rows['examples'], SIZES)
    np.testing.assert_array_equal(rows['steps'], np.where(took, -(-SIZES // 4), 0))
    assert np.isnan(rows['loss'][~took]).all()
    mean = np.average(rows['loss'][took], weights=SIZES[took])
    np.testing.assert_allclose(mean, record['train_loss'], rtol=1e-6)
    sizes = np.bincount(rows['assignment'], minlength=2)
    assert sizes.tolist() == record['cluster_sizes']
    for kind in ('deployed', 'finetuned'):
      if kind not in record:
        assert np.isnan(rows[kind]).all()
        continue
      mean = np.nanmean(rows[kind])
      np.testing.assert_allclose(mean, record[kind]['macro_accuracy'], rtol=1e-6)
  last = by_round(columns)[-1]
  np.testing.assert_array_equal(
    last['deployed'], made.clients.deployed_accuracy.astype(np.float32)
  )
  assert len({tuple(r['took_part']) for r in by_round(columns)}) > 1


def test_round_0_has_the_clusters_of_the_start(recorded):
  made, _, columns = recorded
  start, first = (
    columns['assignment'][columns['round'] == r].to_numpy() for r in (0, 1)
  )
  assert np.bincount(start).tolist() == made.history[0]['cluster_sizes']
  assert (start != first).sum() == made.history[1]['moved']
  rows = {n: x[columns['round'] == 0] for n, x in columns.items()}
  np.testing.assert_array_equal(rows['examples'], SIZES)
  assert not rows['steps'].any()
  assert not rows['took_part'].any()
  assert np.isnan(rows['loss']).all()


def test_clients_that_have_yet_to_join_have_no_cluster():
  clusters = Clusters(np.array([0, 2, 1]), np.array([1, 1]), np.array(0))
  info = RoundInfo(0.0, 0, 2, 2, clusters)
  part = part_of(info, clusters.assignment, np.arange(3), np.ones(3))
  assert part['assignment'].tolist() == [0, -1, 1]


def test_nothing_but_new_entries_changes_where_clients_are_recorded(recorded):
  made, *_ = recorded
  plain = runs.simulated_linear(**CHOSEN)
  new = {'simulated_seconds', 'device_profile'}
  assert [
    {k: v for k, v in r.items() if k not in new}
    for r in runs.without_time(made.history)
  ] == runs.without_time(plain.history)
  assert set().union(*plain.history) >= NEW
  assert jax.tree.all(
    jax.tree.map(lambda a, b: bool((a == b).all()), made.state, plain.state)
  )
  assert plain.summary['fairness'] == made.summary['fairness']


def test_rounds_cost_what_was_sent_and_the_slowest_clients_time(recorded):
  made, _, columns = recorded
  local = runs.built('fesem', hidden=()).local
  size = traffic.bytes_of_model(local)
  first, second = made.history[1:3]
  assert (first['bytes_down'], first['bytes_up']) == (4 * size, 4 * size)
  assert (first['start_bytes_down'], 'start_bytes_down' in second) == (M * size, False)
  assert made.summary['costs']['bytes_down'] == (M + 16) * size
  of = device_profiles.PROFILES['broadband']
  key = prng_streams.fold(jax.random.key(0), prng_streams.INIT)
  own = np.asarray(device_profiles.speeds(of, key, np.arange(M)), float)
  per_example = device_profiles.operations(local.model, (6,))
  for record, rows in zip(made.history[1:], by_round(columns), strict=True):
    batch = np.minimum(4, SIZES)
    seconds = (
      of.overhead
      + size / own[0]
      + 3 * per_example * rows['steps'] * batch / own[2]
      + size / own[1]
    )
    slowest = seconds[rows['took_part']].max()
    np.testing.assert_allclose(record['simulated_seconds'], slowest, rtol=1e-6)
  total = sum(r['simulated_seconds'] for r in made.history[1:])
  assert made.summary['costs']['simulated_seconds'] == pytest.approx(total)


def test_fairness_is_of_the_first_figure(recorded):
  made, *_ = recorded
  values = made.clients.deployed_accuracy
  found = made.summary['fairness']['deployed']
  assert found['clients'] == (~np.isnan(values)).sum() == M - 1
  assert found['worst_decile'] == np.nanmin(values)
  assert found['deviation'] == pytest.approx(np.nanstd(values))


def test_a_resumed_run_goes_on_with_its_history(recorded, tmp_path):
  _, _, columns = recorded
  options = CHOSEN | {'workdir': tmp_path}
  runs.simulated_linear(callbacks=[ClientHistory()], **options | {'rounds': 2})
  assert fj.load_run(tmp_path).client_history['round'].unique().tolist() == [0, 1, 2]
  runs.simulated_linear(callbacks=[ClientHistory()], **options)
  again = fj.load_run(tmp_path).client_history
  pandas.testing.assert_frame_equal(again, columns)


def test_every_second_round_alone(tmp_path):
  runs.simulated_linear(callbacks=[ClientHistory(2)], workdir=tmp_path, **CHOSEN)
  assert fj.load_run(tmp_path).client_history['round'].unique().tolist() == [0, 2, 4]


def test_of_a_method_that_does_not_tell_of_clients_the_rest_is_kept(tmp_path):
  method = runs.built('fed_avg', hidden=())

  def step(*args):
    state, info = method.step(*args)
    return state, info._replace(clients=None)

  silent = method._replace(step=step, traffic=None)
  watching = [ClientHistory(), Costs('phone')]
  made = runs.simulated_linear(silent, workdir=tmp_path, callbacks=watching, rounds=1)
  found = fj.load_run(tmp_path).client_history
  assert np.isnan(found['loss']).all()
  assert (found['steps'] == -1).all()
  assert (found['assignment'] == -1).all()
  np.testing.assert_array_equal(
    found['deployed'], made.clients.deployed_accuracy.astype(np.float32)
  )
  assert made.summary['costs']['simulated_seconds'] is None


def test_rounds_that_are_done_again_appear_once(tmp_path):
  client_history.begin(tmp_path, 0)
  part = {name: np.arange(3) for name in list(COLUMNS)[2:]}
  names = np.array(['a', 'ß', 'c c'])
  for number in (1, 2, 3, 10):
    client_history.write_part(tmp_path, number, names, part)
  client_history.begin(tmp_path, 2)
  client_history.write_part(tmp_path, 3, names, part | {'steps': np.full(3, 77)})
  found = client_history.read(tmp_path)
  assert found['round'].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
  assert found['client'].tolist() == names.tolist() * 3
  assert found['steps'].tolist() == [0, 1, 2] * 2 + [77] * 3


def test_a_damaged_round_is_named(recorded, tmp_path):
  folder = shutil.copytree(
    recorded[1] / 'history.parquet', tmp_path / 'history.parquet'
  )
  path = folder / '000002.parquet'
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(fj.UserError, match=r'000002\.parquet'):
    client_history.read(tmp_path)


def test_arguments_are_checked(tmp_path):
  for refused, subject in (
    (lambda: ClientHistory(0), 'every'),
    (lambda: client_history.read(tmp_path), 'client_metrics_every'),
    (lambda: runs.simulated_linear(callbacks=[ClientHistory()], rounds=1), 'workdir'),
  ):
    with pytest.raises(fj.UserError, match=subject):
      refused()
