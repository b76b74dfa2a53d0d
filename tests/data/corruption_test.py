"""Bad clients: who they are, what they send, and figures without them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, load_run, simulate
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.corruption import corrupted, honest
from fesem_jax.evaluation.evaluate import agreement
from fesem_jax.run.results import client_table, saved_client_table
from fesem_jax.training.cohort import train_cohort
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import GROUPS, SIZES, assert_close, matrix

SEED = 3
KEY = jax.random.key(7)


def federation(corrupt='none', fraction=0.0):
  data = helpers.federation([*SIZES, 7, 5], groups=[*GROUPS, 0, 1])
  return corrupted(data, corrupt, fraction, SEED)


@pytest.fixture(scope='module')
def start():
  """Two random models, of which clients start from either, and who from which."""
  keys = jax.random.split(jax.random.key(1))
  models = jax.vmap(helpers.local().model.init)(keys)
  return models, np.arange(8, dtype=np.int32) % 2


@pytest.fixture(scope='module')
def sent(start):
  """Kind of bad clients, starts, layout -> what clients send, [S, ...]."""

  @functools.cache
  def of(kind, starts='shared', **layout):
    models, choice = start
    body = {'dense0': models['dense0'], 'logits': None}
    head = {'dense0': None, 'logits': tree.take(models['logits'], choice)}
    used = {
      'shared': ClientModels(models, jnp.asarray(choice)),
      'body': ClientModels(body, jnp.asarray(choice), head),
      'own': ClientModels(own=tree.take(models, choice)),
    }[starts]
    data = federation(kind, 0.4 if kind != 'none' else 0.0)
    local = helpers.local(**layout)

    @jax.jit
    def train(data, key):
      return train_cohort(local, used, data, helpers.everyone(data), key).params

    return train(data, KEY)

  return of


def bad_of(data):
  return np.asarray(data.corruption.bad)


def test_bad_clients_go_by_id_and_seed_and_shares_are_nested():
  data = helpers.federation(SIZES + SIZES)
  order = np.random.default_rng(0).permutation(12)
  few = corrupted(data, 'noise', 0.25, SEED)
  many = corrupted(data, 'sign_flip', 0.5, SEED)
  assert bad_of(few).sum() == 3
  assert bad_of(many).sum() == 6
  assert bad_of(many)[bad_of(few)].all()
  again = corrupted(data.reorder(order), 'noise', 0.25, SEED)
  np.testing.assert_array_equal(bad_of(again), bad_of(few)[order])
  moved = few.reorder(order, 16)  # As for devices: they go along, padding is honest.
  np.testing.assert_array_equal(bad_of(moved), [*bad_of(few)[order], *[False] * 4])
  others = [bad_of(corrupted(data, 'noise', 0.25, seed)) for seed in range(20)]
  assert (np.mean(others, axis=0) > 0).all()


def test_flipped_labels_are_those_of_bad_clients_training_examples():
  data, flipped = federation(), federation('label_flip', 0.4)
  rows = np.repeat(bad_of(flipped), np.diff(data.offsets))
  np.testing.assert_array_equal(flipped.y[rows], 2 - data.y[rows])
  np.testing.assert_array_equal(flipped.y[~rows], data.y[~rows])
  assert flipped.y.dtype == data.y.dtype
  assert 0 < rows.sum() < len(rows)


def test_flipped_labels_are_labels_that_occur():
  y = np.array([1, 2, 3, 7] * 6)  # From 1, and with a gap.
  data = FederatedData.from_arrays(np.zeros((24, 2)), y, [4] * 6, num_classes=9)
  flipped = corrupted(data, 'label_flip', 0.5, SEED)
  rows = np.repeat(bad_of(flipped), 4)
  np.testing.assert_array_equal(flipped.y[rows], [7, 3, 2, 1] * 3)
  np.testing.assert_array_equal(flipped.y[~rows], y[~rows])


def test_bad_clients_send_the_opposite_or_noise_and_honest_ones_the_same(start, sent):
  start = matrix(start[0])[start[1]]
  true, opposite, noisy = (matrix(sent(k)) for k in ('none', 'sign_flip', 'noise'))
  bad = bad_of(federation('sign_flip', 0.4))
  np.testing.assert_array_equal(opposite[~bad], true[~bad])
  # Noise is drawn in another program, which may round training otherwise.
  np.testing.assert_allclose(noisy[~bad], true[~bad], rtol=1e-6, atol=1e-7)
  assert_close(opposite[bad], 2 * start[bad] - true[bad])
  change, noise = (true - start)[bad], (noisy - start)[bad]
  lengths = np.linalg.norm(noise, axis=1) / np.linalg.norm(change, axis=1)
  # P = 53 draws: the length varies by a tenth.
  assert (np.abs(lengths - 1) < 0.4).all()
  directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
  cosines = directions @ directions.T - np.eye(len(noise))
  assert np.abs(cosines).max() < 0.6  # Each client draws its own.


@pytest.mark.parametrize('layout', [{'chunk': 1}, {'chunk': 3, 'devices': 2}])
def test_what_bad_clients_send_does_not_depend_on_chunks_or_devices(layout, sent):
  assert_close(matrix(sent('noise', **layout)), matrix(sent('noise')))


def test_bad_clients_lie_only_about_layers_that_they_were_sent(start, sent):
  models, choice = start
  opposite, true = sent('sign_flip', 'body'), sent('none')
  bad = bad_of(federation('sign_flip', 0.4))
  np.testing.assert_array_equal(matrix(opposite['logits']), matrix(true['logits']))
  body = matrix(models['dense0'])[choice]
  lie = np.where(bad[:, None], 2 * body - matrix(true['dense0']), 0)
  assert_close(matrix(opposite['dense0'])[bad], lie[bad])
  # No server receives models of their own, as in NonFed.
  np.testing.assert_array_equal(matrix(sent('sign_flip', 'own')), matrix(true))


@pytest.mark.nightly
def test_robusts_clients_lie_once_after_all_repetitions_of_the_first_training():
  # With a center for each client, centers are what clients sent.
  local = helpers.local(rate=0.3, model='logistic')
  algorithm = algorithms.build(
    'robust', local, num_clusters=8, init_epochs=2, trim=0.0, init_tolerance=0.05
  )
  init = jax.jit(algorithm.init)

  def models_of(data):
    state = init(KEY, data)
    return matrix(tree.take(state.centers, state.assignment))

  drawn = local.model.init(prng_streams.fold(KEY, prng_streams.MODEL))
  start = matrix(tree.expand(drawn))
  bad = bad_of(federation('sign_flip', 0.4))
  true, opposite = models_of(federation()), models_of(federation('sign_flip', 0.4))
  assert_close(opposite[~bad], true[~bad])
  assert_close(opposite[bad], 2 * start - true[bad])


@pytest.mark.parametrize('name', ['scaffold', 'fed_dane'])
def test_methods_that_send_more_than_models_refuse_lies_about_models(name, tmp_path):
  algorithm = algorithms.build(name, helpers.local())
  data = federation('sign_flip', 0.4)
  sentence = f'`corrupt=sign_flip` is not defined for {name}, .*`corrupt=label_flip`'
  with pytest.raises(UserError, match=sentence):
    simulate(algorithm, data, federation(), rounds=1, workdir=tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  flipped = federation('label_flip', 0.4)
  jax.eval_shape(algorithm.init, KEY, flipped)


@pytest.mark.parametrize(
  ('corrupt', 'fraction', 'sentence'),
  [
    ('flip', 0.1, 'corrupt'),
    ('none', 0.1, '`corrupt_fraction=0.1` needs `corrupt`'),
    ('noise', 0.0, '`corrupt_fraction=0.0` makes 0 of 8 clients bad'),
    ('noise', 0.01, '`corrupt_fraction=0.01` makes 0 of 8 clients bad'),
    ('noise', 0.99, '`corrupt_fraction=0.99` makes 8 of 8 clients bad'),
    ('noise', 1.0, r'`corrupt_fraction=1.0` must lie in \[0, 1\)'),
    ('noise', -0.1, r'`corrupt_fraction=-0.1` must lie in'),
    ('noise', float('nan'), r'`corrupt_fraction=nan` must lie in'),
  ],
)
def test_bad_arguments_are_refused(corrupt, fraction, sentence):
  with pytest.raises(UserError, match=sentence):
    federation(corrupt, fraction)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A clustered run with bad clients, and the folder that it wrote."""
  folder = tmp_path_factory.mktemp('bad') / 'run'
  local = helpers.local(model='logistic')
  algorithm = algorithms.build('fesem', local, num_clusters=2)
  arguments = {'rounds': 2, 'workdir': folder}
  train = federation('noise', 0.4)
  result = simulate(algorithm, train, federation(), **arguments)
  return (
    result,
    folder,
    lambda data: simulate(algorithm, data, federation(), **arguments),
  )


@pytest.mark.slow
def test_figures_of_honest_clients_are_those_of_their_lines(finished):
  result, _, _ = finished
  table, data = result.clients, federation('noise', 0.4)
  kept = ~bad_of(data)
  np.testing.assert_array_equal(table.honest, kept)
  found = result.summary['honest']
  assert found['clients'] == kept.sum()
  columns = table._asdict()
  for kind in ('deployed', 'finetuned'):
    for name in ('accuracy', 'f1'):
      own, size = columns[f'{kind}_{name}'][kept], table.test_examples[kept]
      np.testing.assert_allclose(
        [found[kind][f'{over}_{name}'] for over in ('micro', 'macro')],
        [np.average(own, weights=size), own.mean()],
        rtol=1e-12,
      )
    assert found[kind] != result.summary[kind]
  want = agreement(table.true_cluster[kept], table.cluster[kept])
  assert {name: found[name] for name in want} == want
  assert [record['honest']['clients'] for record in result.history[1:]] == [
    kept.sum()
  ] * 2


def test_the_files_say_who_is_honest(finished):
  result, folder, _ = finished
  lines = (folder / 'clients.csv').read_text().splitlines()
  assert lines[0].endswith('"honest"')
  np.testing.assert_array_equal(
    [line.endswith(',1') for line in lines[1:]], result.clients.honest
  )
  run = load_run(folder)
  np.testing.assert_array_equal(run.clients.honest, result.clients.honest)
  assert run.summary['honest'] == result.summary['honest']
  assert run.clients.of('c0')['honest'] in (True, False)


def test_a_run_goes_on_with_the_same_bad_clients_only(finished):
  result, _, again = finished
  assert again(federation('noise', 0.4)).summary == result.summary
  for data in (federation(), federation('sign_flip', 0.4), federation('noise', 0.2)):
    with pytest.raises(UserError, match='another run'):
      again(data)


def test_without_bad_clients_the_table_has_no_such_column(finished, tmp_path):
  table = finished[0].clients._replace(honest=None)
  client_table.write(tmp_path, table)
  assert 'honest' not in (tmp_path / 'clients.csv').read_text()
  assert saved_client_table.read(tmp_path).honest is None
  assert honest(federation()) is None
