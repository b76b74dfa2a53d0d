"""Loggers with the packages themselves, and metrics on a test set of the server."""

import json

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

import fesem_jax as fj
from fesem_jax.run.callbacks import loggers
from tests.support import helpers
from tests.support.runs import GROUPS, SIZES, TEST_SIZES, simulated_linear


@pytest.mark.nightly
def test_weights_and_biases_has_one_offline_run(tmp_path, monkeypatch):
  pytest.importorskip('wandb')
  for name in ('WANDB_MODE', 'WANDB_PROJECT'):
    monkeypatch.delenv(name, raising=False)
  for rounds in (2, 3, 3):  # It goes on, and is asked for once more.
    callbacks = loggers.build(['wandb', 'wandb'])
    result = simulated_linear(rounds=rounds, workdir=tmp_path, callbacks=callbacks)
  name = (tmp_path / 'wandb_run.txt').read_text()
  parts = sorted((tmp_path / 'wandb').glob('offline-run-*/run-*.wandb'))
  assert [p.name for p in parts] == [f'run-{name}.wandb'] * 2  # Nothing of the third.
  for part, number in zip(parts, (2, 3), strict=True):
    content = part.read_bytes()
    assert b'deployed/micro_accuracy' in content
    loss = result.history[number]['train_loss']
    assert repr(loss).encode() in content


def test_a_function_gets_the_numbers_of_all_rounds(tmp_path):
  simulated_linear(rounds=1, workdir=tmp_path)
  outcome = {}
  logger = loggers.Logger(outcome.__setitem__)
  result = simulated_linear(rounds=3, workdir=tmp_path, callbacks=[logger])
  assert list(outcome) == [record['round'] for record in result.history]
  measured = result.history[-1]['deployed']['micro_accuracy']
  assert outcome[3]['deployed/micro_accuracy'] == measured


def test_tensorboard_has_all_rounds(tmp_path):
  pytest.importorskip('tensorboardX')
  callbacks = loggers.build(['tensorboard'])
  simulated_linear(rounds=2, workdir=tmp_path, callbacks=callbacks)
  [events] = (tmp_path / 'tensorboard').iterdir()
  assert events.read_bytes().count(b'finetuned/micro_accuracy') == 2


# Metrics on a test set of the server, against float64.


def splits(count=37):
  """The federation of `runs`, with a test set of the server of rows of both groups."""
  train = helpers.federation(SIZES, groups=GROUPS)
  test = helpers.federation(TEST_SIZES, 1, GROUPS)
  server = helpers.federation([count - 20, 20], 2, [0, 1])
  return train, test.with_server_test(server.x, server.y)


class Watch(fj.Callback):
  """Keeps the centers of each evaluation."""

  def __init__(self):
    self.centers = []

  def on_round(self, event):
    if event.measured is not None:
      self.centers.append(event.models.centers)


def reference(centers, k, x, y):
  """Accuracy, F1 and mean loss of the k-th model, in float64."""
  kernel, bias = (
    np.asarray(centers['logits'][n][k], float) for n in ('kernel', 'bias')
  )
  logits = np.asarray(x, float) @ kernel + bias
  logits -= logits.max(axis=1, keepdims=True)
  logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
  predicted = logits.argmax(axis=1)
  return {
    'micro_accuracy': accuracy_score(y, predicted),
    'micro_f1': f1_score(y, predicted, average='macro', zero_division=0),
    'micro_loss': -logits[np.arange(len(y)), y].mean(),
  }


@pytest.mark.parametrize('method', ['fed_avg', 'fesem'])
def test_the_metrics_of_each_model_are_those_of_float64(method, tmp_path):
  watch, (train, test) = Watch(), splits()
  result = simulated_linear(
    method, (train, test), rounds=3, eval_every=2, workdir=tmp_path, callbacks=[watch]
  )
  measured = [r['server'] for r in result.history if 'server' in r]
  assert [r['round'] for r in result.history if 'server' in r] == [2, 3]
  for outcome, centers in zip(measured, watch.centers, strict=True):
    count = len(centers['logits']['bias'])
    inputs = [reference(centers, k, *test.server_test) for k in range(count)]
    of_each = outcome.get('clusters', [outcome])
    for one, expected in zip(of_each, inputs, strict=True):
      assert one == pytest.approx(expected, rel=1e-5)
    assert ('cluster' in outcome) == (method == 'fesem')
    best = max(inputs, key=lambda scores: scores['micro_accuracy'])
    assert outcome['micro_accuracy'] == pytest.approx(best['micro_accuracy'])
  assert json.loads((tmp_path / 'summary.json').read_text())['server'] == measured[-1]
  # It changes no other number, and another one makes another run.
  plain = simulated_linear(method, (train, splits()[1]), rounds=3, eval_every=2)
  assert plain.summary['deployed'] == result.summary['deployed']
  with pytest.raises(fj.UserError, match='the data'):
    simulated_linear(
      method, (train, splits(38)[1]), rounds=3, eval_every=2, workdir=tmp_path
    )
