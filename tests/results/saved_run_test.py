"""Results in the user's order, and finished runs loaded from their workdirs."""

import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest

import fesem_jax as fj
from fesem_jax import algorithms, models
from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results import client_table, files, saved_models
from fesem_jax.run.results.deployed_models import DeployedModels, Examples
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.commands import ROOT
from tests.support.nights import rest_by_night
from tests.support.runs import (
  GROUPS,
  SIZES,
  TEST_SIZES,
  assert_same_state,
  built,
  federation,
  simulate,
  simulated,
)

NAMES = ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6']
# Centers; a body beside heads of the clients; one model, none, and centers by loss.
METHODS = rest_by_night(['fesem', 'fed_per', 'fed_avg', 'non_fed', 'hypo_cluster'])


@pytest.fixture(scope='module', params=METHODS)
def finished(request, tmp_path_factory):
  """A method's name, the result of a run of it and its workdir."""
  folder = tmp_path_factory.mktemp(request.param)
  result = simulated(request.param, workdir=folder, finetune_epochs=1)
  return request.param, result, folder


@pytest.fixture(scope='module')
def done(tmp_path_factory):
  folder = tmp_path_factory.mktemp('done')
  simulated(workdir=folder)
  return folder


@pytest.fixture
def workdir(done, tmp_path):
  """A copy of a finished run to be broken."""
  return shutil.copytree(done, tmp_path / 'run')


def logits_of(params, x):
  """The MLP of `helpers.local` in float64."""
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  hidden = np.maximum(x @ p['dense0']['kernel'] + p['dense0']['bias'], 0)
  return hidden @ p['logits']['kernel'] + p['logits']['bias']


def without_arranging(name):
  """What clients deploy after two rounds on the data in the user's order."""
  algorithm = built(name, devices=1)
  train, _ = federation()
  init_key, rounds_key = (
    jax.random.fold_in(jax.random.key(0), stream)
    for stream in (prng_streams.INIT, prng_streams.ROUNDS)
  )
  state = jax.jit(algorithm.init)(init_key, train)
  for r in (1, 2):
    key = jax.random.fold_in(rounds_key, r)
    state, _ = jax.jit(algorithm.step)(state, train, helpers.everyone(train), key)
  return algorithm.deployed(state, train)


def test_results_are_in_the_order_and_by_the_names_of_the_users_data(finished):
  name, result, folder = finished
  assert not np.array_equal(result.places, range(7))  # They were dealt otherwise.
  want = without_arranging(name)
  every = want.params(7)
  loaded = fj.load_run(folder)
  train, test = federation()
  for i, client in enumerate(NAMES):
    client_params = jax.tree.map(lambda p, i=i: p[i], every)
    for actual in (result.deployed, loaded):
      params = actual.params(client=client)
      assert jax.tree.structure(params) == jax.tree.structure(client_params)
      for a, b in zip(
        jax.tree.leaves(params), jax.tree.leaves(client_params), strict=True
      ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    x, y = test.client(i)
    guess = logits_of(client_params, x).argmax(axis=1)
    np.testing.assert_array_equal(loaded.predict(x, client=client), guess)
    line = result.clients.iloc[i]
    assert line['examples'] == len(train.client(i)[1]) == SIZES[i]
    assert line['test_examples'] == TEST_SIZES[i]
    assert line['true_cluster'] == GROUPS[i]
    if len(y):
      assert line['deployed_accuracy'] == pytest.approx((guess == y).mean())
    else:
      assert np.isnan(line['deployed_accuracy'])
    if want.choice is not None:
      assert line['cluster'] == want.choice[i]
  in_full = result.models.params(7)
  for a, b in zip(jax.tree.leaves(in_full), jax.tree.leaves(every), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_loaded_run_is_what_simulate_returned(finished):
  _, result, folder = finished
  loaded = fj.load_run(folder)
  assert json.dumps(loaded.summary) == json.dumps(result.summary)
  assert loaded.history == result.history
  assert loaded.config['hidden'] == ['5']
  for name in ('clients', 'rounds'):
    pandas.testing.assert_frame_equal(getattr(loaded, name), getattr(result, name))
  assert_same_state(loaded.centers, result.models.shared)


def test_figures_of_clients_add_up_to_the_summary(finished):
  _, result, _ = finished
  for kind in ('deployed', 'finetuned'):
    accuracy, f1 = (result.clients[f'{kind}_{n}'] for n in ('accuracy', 'f1'))
    scores = result.summary[kind]
    tested = result.clients.test_examples > 0
    assert scores['macro_accuracy'] == pytest.approx(accuracy[tested].mean())
    assert scores['macro_f1'] == pytest.approx(f1[tested].mean())


@pytest.mark.parametrize(
  'name', ['fesem', pytest.param('non_fed', marks=pytest.mark.nightly)]
)
def test_a_run_loads_on_another_number_of_devices_without_the_data(name, tmp_path):
  result = simulated(name, workdir=tmp_path / 'run')
  x = federation()[1].client(3)[0]
  np.save(tmp_path / 'x.npy', x)
  script = f"""
import sys, jax, numpy as np, fesem_jax as fj
run = fj.load_run({str(tmp_path / 'run')!r})
x = np.load({str(tmp_path / 'x.npy')!r})
p = run.predict(x, client='c3', probabilities=True)
np.save({str(tmp_path / 'p.npy')!r}, p)
print(jax.device_count(), len(run.history), 'flax.nnx' in sys.modules)
"""
  env = os.environ | {'JAX_NUM_CPU_DEVICES': '3', 'PYTHONPATH': str(ROOT)}
  out = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, env=env
  )
  assert out.returncode == 0, out.stderr
  # NNX is slow to import.
  assert out.stdout.split() == ['3', str(len(result.history)), 'False']
  logits = logits_of(result.deployed.params(client='c3'), x)
  want = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  np.testing.assert_allclose(np.load(tmp_path / 'p.npy'), want, rtol=1e-4)


def test_centers_are_models_by_cluster(done):
  loaded = fj.load_run(done)
  x = federation()[1].client(1)[0]
  for k in (0, 1):
    center = jax.tree.map(lambda c, k=k: c[k], loaded.centers)
    want = logits_of(center, x).argmax(axis=1)
    np.testing.assert_array_equal(loaded.predict(x, cluster=k), want)
  assert loaded.predict(x[:0], cluster=0).shape == (0,)
  many = np.tile(x, (200, 1))  # Several batches, the last one not full.
  np.testing.assert_array_equal(
    loaded.predict(many, cluster=1), np.tile(loaded.predict(x, cluster=1), 200)
  )


def test_models_without_names_and_files_of_one_model(tmp_path):
  deployed = simulated('fed_per').deployed
  assert set(deployed.centers) == {'dense0'}
  with pytest.raises(UserError, match='client'):
    deployed.params(cluster=0)
  assert simulated('non_fed').deployed.centers is None
  simulated('fed_avg', workdir=tmp_path)
  loaded = fj.load_run(tmp_path)
  x = federation()[1].client(0)[0]
  np.testing.assert_array_equal(loaded.predict(x), loaded.predict(x, client='c4'))
  loaded.save_model(tmp_path / 'model.npz')
  with np.load(tmp_path / 'model.npz') as arrays:
    np.testing.assert_array_equal(
      arrays['logits/bias'], loaded.params()['logits']['bias']
    )


def test_examples_of_bytes_are_scaled_as_in_training():
  local = helpers.local()
  params = helpers.first_model(local)
  stack = jax.tree.map(lambda p: np.asarray(p)[None], params)
  result = DeployedModels.of(
    ClientModels(stack), NAMES, Examples((6,), 'uint8', 1 / 255, 3), local.model
  )
  x = np.random.default_rng(0).integers(0, 256, (9, 6))
  want = logits_of(params, x / 255)
  want = np.exp(want) / np.exp(want).sum(axis=1, keepdims=True)
  np.testing.assert_allclose(result.predict(x, probabilities=True), want, rtol=1e-4)
  for wrong in (x / 255, x - 1000, x + 200):
    with pytest.raises(UserError, match='x'):
      result.predict(wrong)


def test_a_mixture_predicts_the_weighted_mean_of_its_models():
  local = helpers.local()
  stack = helpers.first_models(local, 2, 3)
  weights = np.array([[0.3, 0.7], [1.0, 0.0]], np.float32)
  used = ClientModels(jax.device_get(stack), mixture=weights)
  result = DeployedModels.of(
    used, np.array(['a', 'b']), Examples((6,), 'float32', 1.0, 3), local.model
  )
  x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
  centers = [result.predict(x, cluster=k, probabilities=True) for k in (0, 1)]
  for client, (a, b) in zip(result.names, weights, strict=True):
    want = a * centers[0] + b * centers[1]
    got = result.predict(x, client=str(client), probabilities=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match='client'):
      result.params(client=str(client))


def test_a_run_of_the_api_predicts_once_the_model_is_given(tmp_path):
  result = simulated(workdir=tmp_path, config=None)
  x = federation()[1].client(1)[0]
  with pytest.raises(UserError, match='model'):
    fj.load_run(tmp_path).predict(x, cluster=0)
  assert set(fj.load_run(tmp_path).params(cluster=0)) == {'dense0', 'logits'}
  model = helpers.local().model
  want = result.deployed.predict(x, cluster=0)
  np.testing.assert_array_equal(
    fj.load_run(tmp_path, model).predict(x, cluster=0), want
  )
  for other in (models.build('mlp', (6,), 3, (4,)), models.build('logistic', (6,), 3)):
    with pytest.raises(UserError, match='dense0/bias'):
      fj.load_run(tmp_path, other).predict(x, cluster=0)


def test_models_of_any_pytree_come_back_as_they_were(tmp_path):
  def init(key):
    return [jax.random.normal(key, (6, 3)), (jnp.zeros(3),)]

  model = fj.Model(init, lambda p, x: x @ p[0] + p[1][0][None])
  local = helpers.local()._replace(model=model)
  result = simulate(
    algorithms.build('non_fed', local), *federation(), rounds=1, workdir=tmp_path,
  )  # fmt: skip
  loaded = fj.load_run(tmp_path, model)
  params = loaded.params(client='c5')
  assert jax.tree.structure(params) == jax.tree.structure(init(jax.random.key(0)))
  np.testing.assert_array_equal(params[0], result.models.personal[0][5])
  x, _ = federation()[1].client(5)
  want = (x @ params[0] + params[1][0]).argmax(axis=1)
  np.testing.assert_array_equal(loaded.predict(x, client='c5'), want)


@pytest.mark.parametrize(('name', 'change', 'subject'), [
  ('config.json', None, 'holds no run'), ('summary.json', None, 'not finished'),
  ('clients.csv', None, 'clients.csv'), ('models.npz', None, 'save_models'),
  ('summary.json', lambda raw: raw[:20], 'summary.json'),
  ('clients.csv', lambda raw: raw.replace(b'"c3",14', b'"c3",x'), 'clients.csv'),
  ('models.npz', lambda raw: raw[:-40], 'models.npz'),
])  # fmt: skip
def test_damaged_and_unfinished_runs_are_refused(workdir, name, change, subject):
  content = (workdir / name).read_bytes()
  (workdir / name).unlink()
  if change:
    (workdir / name).write_bytes(change(content))
  with pytest.raises(UserError, match=subject):
    _ = fj.load_run(workdir).deployed


@pytest.mark.parametrize(('x', 'options', 'subject'), [
  (np.zeros(6), {'cluster': 0}, 'x'), (np.zeros((2, 5)), {'cluster': 0}, 'x'),
  (np.zeros((2, 6)), {'client': 'nobody'}, 'client'),
  (np.zeros((2, 6)), {'cluster': 2}, 'cluster'),
  (np.zeros((2, 6)), {'cluster': -1}, 'cluster'), (np.zeros((2, 6)), {}, 'cluster'),
])  # fmt: skip
def test_arguments_of_predict_are_checked(done, x, options, subject):
  with pytest.raises(UserError, match=f'^{subject}: '):
    fj.load_run(done).predict(x, **options)


def test_a_longer_run_replaces_what_the_shorter_one_left(tmp_path, caplog):
  simulated(workdir=tmp_path, save_models=False, make_portrait=True)
  assert not (tmp_path / 'models.npz').exists()
  with pytest.raises(UserError, match='save_models'):
    fj.load_run(tmp_path).params(cluster=0)
  before = (tmp_path / 'summary.json').stat().st_mtime_ns
  simulated(workdir=tmp_path, save_models=True)  # They can be added later.
  assert (tmp_path / 'summary.json').stat().st_mtime_ns == before
  assert not caplog.records
  result = simulated(workdir=tmp_path, rounds=3, make_portrait=False)
  loaded = fj.load_run(tmp_path)
  assert loaded.summary['rounds'] == loaded.history[-1]['round'] == 3
  assert_same_state(loaded.centers, result.models.shared)
  assert not (tmp_path / 'clients.npz').exists()
  simulated(workdir=tmp_path, rounds=4, save_models=False)
  assert not (tmp_path / 'models.npz').exists()  # Those of round 3 would mislead.


def test_large_models_are_saved_on_request_only(tmp_path, monkeypatch, caplog):
  size = 7 * 4 * (6 * 5 + 5 + 5 * 3 + 3)
  for most, save_models in ((size - 1, None), (size - 1, True), (size, None)):
    monkeypatch.setattr(saved_models, 'MAX_BYTES', most)
    folder = tmp_path / f'{most}_{save_models}'
    simulated('non_fed', workdir=folder, save_models=save_models)
    saved = bool(most == size or save_models)
    assert (folder / 'models.npz').exists() == saved
    assert ('save_models' in caplog.text) == (not saved)
    caplog.clear()


def test_the_portrait_is_in_the_users_order(tmp_path):
  train, test = (
    helpers.federation(sizes, seed, GROUPS, shape=(4, 4))
    for seed, sizes in enumerate((SIZES, TEST_SIZES))
  )
  local = helpers.local(shape=(4, 4), devices=2, model='logistic')
  algorithm = algorithms.build('fesem', local, num_clusters=2)
  options = {'rounds': 1, 'workdir': tmp_path, 'finetune_epochs': 0}
  result = fj.simulate(algorithm, train, test, **options)
  assert not np.array_equal(result.places, range(7))
  for picture in (result.portrait, files.read_portrait(tmp_path)):
    assert picture['names'].tolist() == NAMES
    assert picture['truth'].tolist() == GROUPS
    np.testing.assert_array_equal(picture['assignment'], result.clients.cluster)
    assert sorted(picture['sampled']) == list(range(7))
    np.testing.assert_array_equal(picture['label_counts'].sum(axis=1), SIZES)
    shown = 0
    for k, row in enumerate(picture['sheet_clients']):
      for i, client in enumerate(row):
        if client >= 0:
          assert picture['assignment'][client] == k
          assert picture['sheet_images'][k, i, 0] in train.client(client)[0]
          shown += 1
    assert shown == 7


def test_names_of_any_characters_survive(tmp_path):
  names = ['a,b', 'c"d', 'e\nf', 'g\rh', ' i ', '\u00e9\u4e2d', 'x\ud800y']
  data = [
    fj.FederatedData.from_arrays(
      d.x, d.y, d.sizes(), num_classes=3, info=fj.ClientInfo(np.array(names))
    )
    for d in federation()
  ]
  result = simulated('non_fed', data, rounds=1, workdir=tmp_path)
  loaded = fj.load_run(tmp_path)
  assert loaded.clients['client'].tolist()[:6] == names[:6]
  assert loaded.clients['client'][6] == 'x\\ud800y'  # Such a file is no UTF-8.
  for name in names:
    a, b = (r.params(client=name)['logits']['bias'] for r in (loaded, result.deployed))
    np.testing.assert_array_equal(a, b)


def test_a_run_killed_while_it_writes_its_result_is_not_finished(workdir, monkeypatch):
  def killed(*args, **kwargs):
    raise KeyboardInterrupt

  monkeypatch.setattr(client_table, 'write', killed)
  with pytest.raises(KeyboardInterrupt):
    simulated(workdir=workdir, rounds=3)
  with pytest.raises(UserError, match='not finished'):
    fj.load_run(workdir)


def test_an_earlier_end_between_evaluations_counts_in_no_report(tmp_path):
  how = {'method': 'fed_avg', 'hidden': (), 'eval_every': 2}
  for rounds_asked in (3, 5):
    longer = simulated(workdir=tmp_path / 'longer', rounds=rounds_asked, **how)
  whole = simulated(rounds=5, **how)
  assert longer.summary['reports']['mean10']['evaluations'] == 3
  assert longer.summary['reports'] == whole.summary['reports']


def test_features_of_the_file_are_standardized_to_predict(tmp_path):
  rng = np.random.default_rng(0)
  x = rng.normal([10, -3], [5, 0.1], (90, 2))
  pool = fj.data.from_arrays(x, (x[:, 0] > 10).astype(int), class_names=['low', 'high'])
  train, test = fj.data.federate(pool, 'iid', num_clients=3, standardize=True)
  model = models.build('logistic', (2,), 2)
  local = fj.local_training(model, optax.sgd(0.5))
  result = fj.simulate(fj.algorithms.fed_avg(local), train, test, rounds=3,
                       workdir=tmp_path, finetune_epochs=0)  # fmt: skip
  run = fj.load_run(tmp_path, model)
  of = run.deployed.examples
  outputs = run.deployed.outputs((x - of.mean) / of.deviation)
  np.testing.assert_array_equal(run.predict(x), outputs.argmax(axis=1))
  np.testing.assert_array_equal(run.predict(x), result.predict(x))
  assert (run.predict(x) == (x[:, 0] > 10)).mean() > 0.9
  named = run.predict(x, names=True)
  np.testing.assert_array_equal(named, np.where(run.predict(x), 'high', 'low'))
  np.testing.assert_allclose(of.mean, x.mean(axis=0), rtol=0.2)
  np.testing.assert_allclose(of.deviation, x.std(axis=0), rtol=0.2)
