"""Loggers, with the packages themselves."""

import json
import sys

import pytest

from fesem_jax.run.callbacks import loggers
from fesem_jax.run.callbacks.logged_runs import logged_run
from fesem_jax.utils.errors import UserError
from tests.support.runs import simulated_linear


@pytest.fixture(scope='module')
def logged(tmp_path_factory):
  """The workdir of a run that was logged, went on and was asked for once more."""
  for package in ('wandb', 'mlflow', 'alembic', 'tensorboardX'):
    pytest.importorskip(package)
  folder = tmp_path_factory.mktemp('logged')
  with pytest.MonkeyPatch.context() as environment:
    for name in ('WANDB_MODE', 'WANDB_PROJECT', 'MLFLOW_TRACKING_URI'):
      environment.delenv(name, raising=False)
    for rounds in (2, 3, 3):
      result = simulated_linear(
        rounds=rounds,
        workdir=folder,
        callbacks=loggers.build(['mlflow', 'wandb', 'tensorboard', 'wandb']),
      )
  return folder, result


@pytest.mark.nightly
def test_mlflow_has_every_round_of_a_resumed_run_once(logged):
  from mlflow import MlflowClient

  folder, result = logged
  client = MlflowClient(f'sqlite:///{folder}/mlflow.db')
  experiment = client.get_experiment_by_name('fesem_jax')
  (run,) = client.search_runs([experiment.experiment_id])
  assert run.info.status == 'FINISHED'
  assert (run.data.params['algorithm'], run.data.tags['ended']) == ('fesem', 'finished')
  held = client.get_metric_history(run.info.run_id, 'deployed/micro_accuracy')
  measured = result.history[1:]
  assert [m.step for m in held] == [r['round'] for r in measured] == [1, 2, 3]
  assert [m.value for m in held] == [r['deployed']['micro_accuracy'] for r in measured]


def test_weights_and_biases_has_one_offline_run(logged):
  folder, result = logged
  name = json.loads((folder / 'logged_runs.json').read_text())['wandb']
  parts = sorted((folder / 'wandb').glob('offline-run-*/run-*.wandb'))
  assert [p.name for p in parts] == [f'run-{name}.wandb'] * 2  # Nothing of the third.
  for part, number in zip(parts, (2, 3), strict=True):
    content = part.read_bytes()
    assert b'deployed/micro_accuracy' in content
    loss = result.history[number]['train_loss']
    assert repr(loss).encode() in content


def test_tensorboard_has_all_rounds(logged):
  events = list((logged[0] / 'tensorboard').iterdir())
  assert len(events) == 2
  assert all(b'finetuned/micro_accuracy' in e.read_bytes() for e in events)


def test_mlflow_without_a_place_is_one_sentence(monkeypatch):
  pytest.importorskip('mlflow')
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  with pytest.raises(UserError, match='`log_to=mlflow` needs a `workdir`'):
    simulated_linear(callbacks=loggers.build(['mlflow']))


@pytest.mark.parametrize('name', ['wandb', 'mlflow', 'tensorboard'])
def test_a_missing_package_is_one_sentence(name, monkeypatch):
  package = 'tensorboardX' if name == 'tensorboard' else name
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(UserError, match=r"needs .*: pip install 'fesem_jax\["):
    loggers.build([name])


def test_a_damaged_list_of_logged_runs_is_one_sentence(tmp_path):
  (tmp_path / 'logged_runs.json').write_text('{"wandb": 3}')
  with pytest.raises(UserError, match=r'logged_runs.json is damaged .*; delete it'):
    logged_run(tmp_path, 'wandb', lambda: 'new')
