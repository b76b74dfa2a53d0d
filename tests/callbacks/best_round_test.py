"""The best round on validation examples, its models, and early stopping by it."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax import algorithms, data
from fesem_jax.run.callbacks import BestRound
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import GROUPS
from tests.support.nights import rest_by_night
from tests.support.runs import simulate

WHOLE = helpers.federation([30, 20, 25, 24, 35, 22], groups=GROUPS)
TRAIN, VALIDATION = data.hold_out(WHOLE)
TEST = helpers.federation([9, 8, 7, 9, 8, 7], seed=1, groups=GROUPS)


@functools.cache
def built(method='fed_avg', rate=0.5):
  local = helpers.local(optimizer=optax.sgd(rate), hidden=())
  options = {'num_clusters': 2} if method == 'fesem' else {}
  return algorithms.build(method, local, **options)


def simulated(
  method='fed_avg', rate=0.5, rounds=4, stop_after=0, callbacks=(), **given
):
  best = BestRound(VALIDATION, stop_after)
  options = {'rounds': rounds, 'callbacks': [best, *callbacks], **given}
  return simulate(built(method, rate), TRAIN, TEST, **options), best


class Kept(Callback):
  """The models and records of every evaluation."""

  def on_start(self, event):
    self.models, self.scores = {}, {}

  def on_round(self, event):
    if event.measured is None:
      return
    names = event.clients['client'].to_numpy()
    params = [event.models.params(client=name) for name in names]
    self.models[event.number] = params
    self.scores[event.number] = event.record['validation']


@pytest.mark.parametrize('method', rest_by_night(['fesem', 'non_fed']))
def test_the_models_of_the_best_round_are_kept(method, tmp_path):
  kept = Kept()
  result, best = simulated(method, callbacks=[kept], workdir=tmp_path)
  actual = result.summary['best_round']
  values = {n: scores['micro_accuracy'] for n, scores in kept.scores.items()}
  assert actual['round'] == max(values, key=values.get)  # The first of equals.
  assert actual['validation'] == kept.scores[actual['round']]
  of_round = next(r for r in result.history if r['round'] == actual['round'])
  assert actual['deployed'] == of_round['deployed']
  assert best.models is None  # They are in the workdir.
  local = helpers.local(hidden=())
  run = fj.load_run(tmp_path, model=local.model, which='best')
  for name, params in zip(WHOLE.info.names, kept.models[actual['round']], strict=True):
    loaded = run.params(client=name)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
  last = fj.load_run(tmp_path, model=local.model)
  jax.tree.map(
    np.testing.assert_array_equal, last.params(client='c0'), kept.models[4][0]
  )
  hits = [
    (run.predict(VALIDATION.client(i)[0], client=n) == VALIDATION.client(i)[1])
    for i, n in enumerate(WHOLE.info.names)
  ]
  expected = np.concatenate(hits).mean()
  np.testing.assert_allclose(
    actual['validation']['micro_accuracy'], expected, rtol=1e-6
  )


def test_bad_clients_do_not_choose_the_round():
  train = data.attacks.apply(TRAIN, 'label_flip', 0.4, seed=0)
  best = BestRound(VALIDATION)
  result = simulate(built(), train, TEST, rounds=1, callbacks=[best])
  hits = [
    result.deployed.predict(x) == y
    for x, y in map(VALIDATION.client, np.flatnonzero(data.attacks.honest(train)))
  ]
  best = result.summary['best_round']
  actual = best['validation']['micro_accuracy']
  np.testing.assert_allclose(actual, np.concatenate(hits).mean(), rtol=1e-6)
  assert best['deployed'] == result.summary['honest']['deployed']
  assert best['deployed'] != result.summary['deployed']


def test_runs_end_after_evaluations_without_gain():
  result, best = simulated(rate=0.0, rounds=9, stop_after=2, eval_every=2)
  assert result.summary['ended'] == 'stop_after'
  assert (result.summary['rounds'], result.summary['best_round']['round']) == (6, 2)
  start = jax.device_get(result.deployed.params())
  jax.tree.map(np.testing.assert_array_equal, best.models.params(), start)
  result, _ = simulated(rate=0.0, rounds=3)
  assert result.summary['ended'] == 'finished'


def test_rounds_of_an_infinite_error_are_the_worst():
  def regression(scale):
    x, y = np.asarray(TEST.x), np.full((len(TEST.y), 1), scale, np.float32)
    sizes, info = TEST.sizes(), TEST.info
    return fj.FederatedData.from_arrays(
      x, y, sizes, num_classes=1, info=info, task='regression'
    )

  model = fj.models.build('logistic', helpers.SHAPE, 1, task='regression')
  method = algorithms.fed_avg(fj.local_training(model, optax.sgd(0.1)))
  best = BestRound(regression(1e30), stop_after=2)
  result = simulate(method, *[regression(1.0)] * 2, rounds=9, callbacks=[best])
  assert result.summary['rounds'] == 3
  assert result.summary['best_round']['validation']['micro_rmse'] is None


def test_a_resumed_run_has_the_same_best_round(tmp_path):
  whole, _ = simulated(rounds=5, workdir=tmp_path / 'whole', stop_after=4)
  simulated(rounds=2, workdir=tmp_path / 'parts', stop_after=4)
  parts, _ = simulated(rounds=5, workdir=tmp_path / 'parts', stop_after=4)
  assert parts.summary['best_round'] == whole.summary['best_round']
  a, b = (
    fj.load_run(tmp_path / name, which='best').centers for name in ('whole', 'parts')
  )
  jax.tree.map(np.testing.assert_array_equal, a, b)
  again, _ = simulated(rounds=5, workdir=tmp_path / 'parts', stop_after=4)
  assert again.summary['best_round'] == whole.summary['best_round']


def test_what_does_not_fit_is_refused(tmp_path):
  others = [helpers.federation([3, 3]), dataclasses.replace(VALIDATION, scale=0.5)]
  for validation in others:
    with pytest.raises(UserError, match='validation'):
      simulate(built(), TRAIN, TEST, rounds=1, callbacks=[BestRound(validation)])
  simulated(rounds=1, workdir=tmp_path)
  (tmp_path / 'models_best.npz').unlink()
  with pytest.raises(UserError, match='save_models'):
    _ = fj.load_run(tmp_path, which='best').deployed
  with pytest.raises(UserError, match='which'):
    fj.load_run(tmp_path, which='first')
  simulate(built(), TRAIN, TEST, rounds=1, workdir=tmp_path / 'other')
  with pytest.raises(UserError, match='which'):
    fj.load_run(tmp_path / 'other', which='best')
