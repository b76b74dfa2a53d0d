"""--init_from, --init_layers and --train_layers of a run."""

import pathlib

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.utils.safe_files import read_npz
from tests.support.commands import call

QUICK = [
  '--dataset=digits', '--partition=rotated(2)', '--num_clients=6',
  '--rounds=2', '--local_epochs=1', '--hidden=8', '--finetune_epochs=0',
]  # fmt: skip
ROOT = pathlib.Path(__file__).parent


def run_with(*args):
  return call('run', *QUICK, *args, cwd=ROOT)


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
  """A finished run of FedAvg, and one of FeSEM with two centers."""
  folder = tmp_path_factory.mktemp('pretrained')
  for name, more in (('fed_avg', []), ('fesem', ['--num_clusters=2'])):
    done = run_with(f'--algorithm={name}', *more, f'--workdir={folder / name}')
    assert done.returncode == 0, done.stderr
  return folder


def error(*args):
  done = run_with(*args, '--workdir=/nonexistent')
  assert done.returncode == 1
  return done.stderr.strip().splitlines()[-1]


def assert_predicts_what_it_measured(run):
  """The first client's deployed accuracy is that of a run's predictions."""
  _, test = fj.data.load(
    'digits', num_clients=6, partition='rotated(groups=2)',
    seed=run.config['seed'],
  )  # fmt: skip
  x, y = test.client(0)
  name = test.info.names[0]
  row = list(run.clients['client']).index(name)
  result = (run.predict(x, client=name) == y).mean()
  assert result == pytest.approx(run.clients.deployed_accuracy[row], abs=1e-6)


@pytest.mark.nightly
def test_a_body_is_taken_and_stays_while_heads_train(pretrained, tmp_path):
  center = fj.load_run(pretrained / 'fesem').params(cluster=1)
  workdir = tmp_path / 'heads'
  args = (
    '--algorithm=fesem', '--num_clusters=2',
    f'--init_from={pretrained / "fesem"}:1', '--init_layers=dense*',
    '--train_layers=logits', f'--workdir={workdir}',
  )  # fmt: skip
  done = run_with(*args)
  assert done.returncode == 0, done.stderr
  assert 'mlp of 90 parameters' in done.stdout
  run = fj.load_run(workdir)
  for k in range(2):
    params = run.params(cluster=k)
    np.testing.assert_array_equal(
      params['dense0']['kernel'], center['dense0']['kernel']
    )
    assert np.any(params['logits']['kernel'] != center['logits']['kernel'])
  assert_predicts_what_it_measured(run)  # Saved models are whole.
  # The same command goes on; with other weights it is another run.
  assert run_with(*args, '--rounds=3').returncode == 0
  changed = [a.replace('fesem:1', 'fesem:0') if 'init_from' in a else a for a in args]
  assert 'init_digest' in run_with(*changed).stderr


def test_a_run_starts_from_a_file(pretrained, tmp_path):
  file = tmp_path / 'model.npz'
  before = fj.load_run(pretrained / 'fed_avg')
  before.save_model(file)
  assert sorted(read_npz(file)) == [
    'dense0/bias', 'dense0/kernel', 'logits/bias', 'logits/kernel'
  ]  # fmt: skip
  # A rate of almost 0 leaves the start as it was.
  done = run_with(
    '--algorithm=fed_avg', '--learning_rate=1e-30', f'--init_from={file}',
    f'--workdir={tmp_path / "run"}',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  after = fj.load_run(tmp_path / 'run')
  np.testing.assert_allclose(
    after.params()['dense0']['kernel'], before.params()['dense0']['kernel'], rtol=1e-6
  )


@pytest.mark.nightly
def test_layers_that_are_drawn_and_stay_differ_by_seed(tmp_path):
  # Seeds of a comparison share programs otherwise.
  done = call(
    'compare', *QUICK, '--algorithms=fed_avg', '--num_seeds=2',
    '--train_layers=logits', f'--workdir={tmp_path}', cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  folders = [path.parent for path in tmp_path.rglob('models.npz')]
  runs = [fj.load_run(folder) for folder in folders]
  assert sorted(run.config['seed'] for run in runs) == [0, 1]
  first, second = (run.params()['dense0']['kernel'] for run in runs)
  assert np.any(first != second)
  assert_predicts_what_it_measured(runs[1])


def test_mistakes_are_named(pretrained, tmp_path):
  fesem = pretrained / 'fesem'
  start = f'--init_from={fesem}:0'
  (tmp_path / 'bad.npz').write_bytes(b'no model')
  for args, subject in (
    ([f'--init_from={fesem}'], '--init_from'),
    ([f'--init_from={tmp_path / "bad.npz"}'], 'bad.npz'),
    ([start, '--hidden=9'], 'dense0/bias'),
    (['--train_layers=body'], 'train_layers'),
    ([start, '--algorithm=fed_em', '--num_clusters=2'], '--init_from'),
    ([start, '--algorithm=fesem(2;init_models=by_loss)'], '--init_from'),
  ):
    assert subject in error(*args)
