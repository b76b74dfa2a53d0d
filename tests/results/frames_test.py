"""Frames of runs, from folders and from memory."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest

import fesem_jax as fj
from fesem_jax.run.results import frames
from tests.support.runs import federation, simulated, simulated_linear, without_time


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Two seeds of FeSEM and one of FedAvg, in the folders of a comparison."""
  path = tmp_path_factory.mktemp('runs')
  for method, seed in (('fesem', 0), ('fesem', 1), ('fed_avg', 0)):
    simulated(method, workdir=path / method / f'seed{seed}', seed=seed)
  return path


def test_folders_and_memory_give_the_same_frames(folder):
  result = fj.load_runs(folder)
  recorded = [
    frames.Recorded.of(
      simulated(method, seed=seed), method, seed, run.config, str(run.workdir)
    )
    for method, seed in (('fed_avg', 0), ('fesem', 0), ('fesem', 1))
    for run in [fj.load_run(folder / method / f'seed{seed}')]
  ]  # fmt: skip
  want = frames.joined(recorded)
  timed = ('timing', 'memory')
  runs = [
    f.runs[[c for c in f.runs if not c.startswith(timed)]] for f in (result, want)
  ]
  pd.testing.assert_frame_equal(*runs)
  rounds = [
    f.rounds[~f.rounds['metric'].str.contains('seconds')] for f in (result, want)
  ]
  pd.testing.assert_frame_equal(*(r.reset_index(drop=True) for r in rounds))
  pd.testing.assert_frame_equal(result.clients, want.clients)


def test_rows_are_what_files_hold(folder):
  result = fj.load_runs(f'{folder}/*')
  assert result.runs['method'].tolist() == ['fed_avg', 'fesem', 'fesem']
  assert result.runs['seed'].tolist() == [0, 0, 1]
  workdir = folder / 'fesem/seed1'
  summary = json.loads((workdir / 'summary.json').read_text())
  row = result.runs.iloc[2]
  assert row['deployed.macro_f1'] == summary['deployed']['macro_f1']
  assert row['clusters.sizes'] == summary['clusters']['sizes']
  assert row['config.algorithm'] == 'fesem'
  assert row['status'] == 'finished'
  lines = [json.loads(x) for x in (workdir / 'metrics.jsonl').read_text().splitlines()]
  of_run = result.rounds[result.rounds['run'] == row['run']]
  rounds = of_run.pivot(index='round', columns='metric', values='value')
  for line in lines[1:]:
    number = line['round']
    assert rounds.loc[number, 'cluster_sizes.1'] == line['cluster_sizes'][1]
    if 'deployed' in line:
      want = line['deployed']['micro_accuracy']
      assert rounds.loc[number, 'deployed.micro_accuracy'] == want
  costs = summary['costs']
  assert rounds['total_bytes'].iloc[-1] == costs['bytes_down'] + costs['bytes_up']
  clients = result.clients[result.clients['run'] == row['run']]
  columns = clients.drop(columns=frames.KEYS).reset_index(drop=True)
  want = fj.load_run(workdir).clients
  pd.testing.assert_frame_equal(columns[list(want)], want, check_dtype=False)


def test_unfinished_runs_and_methods_of_two_folders(folder, tmp_path):
  other = tmp_path / 'other/fesem/seed0'
  simulated('fesem', workdir=other)
  (other / 'summary.json').unlink()
  result = fj.load_runs(folder, tmp_path / 'other').runs
  labels = result['method'].astype(str).tolist()
  assert sorted(labels) == [
    'fed_avg', *[f'fesem, {folder}'] * 2, f'fesem, {tmp_path}/other',
  ]  # fmt: skip
  going = result[result['method'].str.endswith('other')].iloc[0]
  assert going['status'] == 'going on'
  assert np.isnan(going['deployed.micro_accuracy'])
  with pytest.raises(fj.UserError, match='holds no run'):
    fj.load_runs(tmp_path / 'none*')


def test_the_start_is_round_0():
  plain, result = (simulated_linear(eval_start=start) for start in (False, True))
  start, *later = result.history
  assert start['round'] == 0
  assert start['cluster_sizes'] == plain.history[0]['cluster_sizes']
  assert without_time(later) == without_time(plain.history[1:])
  assert result.summary['reports'] == plain.summary['reports']
  row = result.rounds.query("round == 0 and metric == 'deployed.micro_accuracy'")
  assert row['value'].tolist() == [start['deployed']['micro_accuracy']]


def test_a_result_can_be_pickled():
  result = simulated('fesem', workdir=None)
  again = pickle.loads(pickle.dumps(result))
  pd.testing.assert_frame_equal(again.clients, result.clients)
  pd.testing.assert_frame_equal(again.rounds, result.rounds)
  assert again.summary == result.summary
  assert list(again.portrait) == list(result.portrait)
  ours, theirs = (r.params(client='c3')['logits']['bias'] for r in (result, again))
  np.testing.assert_array_equal(ours, theirs)
  x = federation()[1].client(1)[0]
  models = type(again.deployed)(**vars(again.deployed) | {'model': result.model})
  np.testing.assert_array_equal(
    models.predict(x, cluster=1), result.predict(x, cluster=1)
  )
