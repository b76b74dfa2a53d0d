"""Loggers, with the packages themselves."""

import pytest

from fesem_jax.run.callbacks import loggers
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
def test_mlflow_has_a_run_of_all_rounds_after_each_start(logged):
  from mlflow import MlflowClient

  folder, result = logged
  client = MlflowClient(f'sqlite:///{folder}/mlflow.db')
  experiment = client.get_experiment_by_name('fesem_jax')
  run, first = client.search_runs([experiment.experiment_id])  # The last one first.
  assert (run.info.status, first.info.status) == ('FINISHED', 'FINISHED')
  assert run.data.params['algorithm'] == 'fesem'
  held = client.get_metric_history(run.info.run_id, 'deployed/micro_accuracy')
  measured = result.history[1:]
  assert [m.step for m in held] == [r['round'] for r in measured] == [1, 2, 3]
  assert [m.value for m in held] == [r['deployed']['micro_accuracy'] for r in measured]


@pytest.mark.nightly
def test_weights_and_biases_has_one_offline_run(logged):
  folder, result = logged
  name = (folder / 'wandb_run.txt').read_text()
  parts = sorted((folder / 'wandb').glob('offline-run-*/run-*.wandb'))
  assert [p.name for p in parts] == [f'run-{name}.wandb'] * 2  # Nothing of the third.
  for part, number in zip(parts, (2, 3), strict=True):
    content = part.read_bytes()
    assert b'deployed/micro_accuracy' in content
    loss = result.history[number]['train_loss']
    assert repr(loss).encode() in content


def test_a_function_gets_the_numbers_of_all_rounds(tmp_path):
  simulated_linear(rounds=1, workdir=tmp_path)
  found = {}
  logger = loggers.Logger(found.__setitem__)
  result = simulated_linear(rounds=3, workdir=tmp_path, callbacks=[logger])
  assert list(found) == [record['round'] for record in result.history]
  measured = result.history[-1]['deployed']['micro_accuracy']
  assert found[3]['deployed/micro_accuracy'] == measured


def test_tensorboard_has_all_rounds(logged):
  events = list((logged[0] / 'tensorboard').iterdir())
  assert len(events) == 2
  assert all(b'finetuned/micro_accuracy' in e.read_bytes() for e in events)
