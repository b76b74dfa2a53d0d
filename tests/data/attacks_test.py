"""Bad clients: who they are, what they change and send, and metrics without them."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms, attacks, load_run, simulate
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import Attack, FederatedData
from fesem_jax.evaluation.evaluate import agreement
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.sent_models import as_sent
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import GROUPS, SIZES, assert_close, matrix

SEED = 3
KEY = jax.random.key(7)
IMAGE = (8, 8, 1)


def federation(attack='', fraction=0.4):
  data = helpers.federation([*SIZES, 7, 5], groups=[*GROUPS, 0, 1])
  return attacks.apply(data, attack, fraction if attack else 0.0, SEED)


def bad_of(data):
  return np.asarray(data.attack.bad)


@pytest.fixture(scope='module')
def start():
  """Two random models, of which clients start from either, and who from which."""
  keys = jax.random.split(jax.random.key(1))
  models = jax.vmap(helpers.local().model.init)(keys)
  return models, np.arange(8, dtype=np.int32) % 2


def sent(start, attack, personal=False, **layout):
  """What clients send, [S, ...]."""
  models, choice = start
  used = ClientModels(models, jnp.asarray(choice))
  if personal:
    used = ClientModels(personal=tree.take(models, choice))
  local = helpers.local(**layout)

  @jax.jit
  def train(data, key):
    return train_cohort(local, used, data, helpers.everyone(data), key).params

  return train(federation(attack), KEY)


def test_bad_clients_go_by_id_and_seed_and_shares_are_nested():
  data = helpers.federation(SIZES + SIZES)
  order = np.random.default_rng(0).permutation(12)
  few = attacks.apply(data, 'noise', 0.25, SEED)
  many = attacks.apply(data, 'sign_flip', 0.5, SEED)
  assert (bad_of(few).sum(), bad_of(many).sum()) == (3, 6)
  assert bad_of(many)[bad_of(few)].all()
  again = attacks.apply(data.reorder(order), 'noise', 0.25, SEED)
  np.testing.assert_array_equal(bad_of(again), bad_of(few)[order])
  moved = few.reorder(order, 16)  # As for devices: they go along, padding is honest.
  np.testing.assert_array_equal(bad_of(moved), [*bad_of(few)[order], *[False] * 4])
  others = [bad_of(attacks.apply(data, 'noise', 0.25, seed)) for seed in range(20)]
  assert (np.mean(others, axis=0) > 0).all()


def test_flipped_labels_are_labels_that_occur():
  y = np.array([1, 2, 3, 7] * 6)  # From 1, and with a gap.
  data = FederatedData.from_arrays(np.zeros((24, 2)), y, [4] * 6, num_classes=9)
  flipped = attacks.apply(data, 'label_flip', 0.5, SEED)
  rows = np.repeat(bad_of(flipped), 4)
  np.testing.assert_array_equal(flipped.y[rows], [7, 3, 2, 1] * 3)
  np.testing.assert_array_equal(flipped.y[~rows], y[~rows])
  assert flipped.y.dtype == data.y.dtype
  assert flipped.x is data.x


def test_bad_clients_mark_half_of_their_examples():
  plain = helpers.federation([400, 300, 300], shape=IMAGE)
  result = attacks.apply(plain, [attacks.Backdoor(2)], 0.34, seed=1)
  bad = np.repeat(bad_of(result), np.diff(result.offsets))
  marked = (np.asarray(result.x)[:, 6:, 6:] == plain.x.max()).all(axis=(1, 2, 3))
  assert not marked[~bad].any()
  assert marked[bad].mean() == pytest.approx(0.5, abs=0.1)
  np.testing.assert_array_equal(result.y, np.where(marked, 2, plain.y))
  rest = np.array(plain.x)
  rest[marked, 6:, 6:] = plain.x.max()
  np.testing.assert_array_equal(result.x, rest)
  assert not result.attack.poisons_models


def test_the_mark_is_a_corner_of_images_and_the_end_of_vectors():
  np.testing.assert_array_equal(
    attacks.mask((28, 28, 1)).sum((0, 2))[24:], [0, 3, 3, 3]
  )
  np.testing.assert_array_equal(np.flatnonzero(attacks.mask((24,))), [21, 22, 23])
  np.testing.assert_array_equal(attacks.mask((4,)), [False, False, False, True])
  flat = attacks.mask((3, 3), 11)
  np.testing.assert_array_equal(np.flatnonzero(flat), [4, 5, 7, 8])


def test_a_replacement_is_the_change_times_its_scale():
  start, end = {'w': jnp.zeros(4) + 1}, {'w': jnp.arange(4.0)}
  kinds = attacks.parse('backdoor(0)+replacement(2.5)')
  data = types.SimpleNamespace(attack=Attack(np.array([True, False]), kinds))
  bad, honest = (as_sent(data, jnp.int32(i), KEY, start, end)['w'] for i in range(2))
  np.testing.assert_allclose(bad, 1 + 2.5 * (np.arange(4.0) - 1))
  np.testing.assert_array_equal(honest, end['w'])


@pytest.mark.slow
def test_bad_clients_send_the_opposite_or_noise_and_honest_ones_the_same(start):
  starts = matrix(start[0])[start[1]]
  true, opposite, noisy = (matrix(sent(start, a)) for a in ('', 'sign_flip', 'noise'))
  bad = bad_of(federation('sign_flip'))
  np.testing.assert_array_equal(opposite[~bad], true[~bad])
  # Noise is drawn in another program, which may round training otherwise.
  np.testing.assert_allclose(noisy[~bad], true[~bad], rtol=1e-6, atol=1e-7)
  assert_close(opposite[bad], 2 * starts[bad] - true[bad])
  change, noise = (true - starts)[bad], (noisy - starts)[bad]
  lengths = np.linalg.norm(noise, axis=1) / np.linalg.norm(change, axis=1)
  # P = 53 draws: the length varies by a tenth.
  assert (np.abs(lengths - 1) < 0.4).all()
  directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
  cosines = directions @ directions.T - np.eye(len(noise))
  assert np.abs(cosines).max() < 0.6  # Each client draws its own.
  assert_close(matrix(sent(start, 'noise', chunk=3, devices=2)), noisy)
  # No server receives models of their own, as in NonFed.
  np.testing.assert_array_equal(matrix(sent(start, 'sign_flip', personal=True)), true)


@pytest.mark.nightly
def test_robusts_clients_lie_once_after_all_repetitions_of_the_first_training():
  # With a center for each client, centers are what clients sent.
  local = helpers.local(rate=0.3, model='logistic')
  algorithm = algorithms.build(
    'robust', local, num_clusters=8, init_epochs=2, trim=0.0, init_tolerance=0.05
  )

  def models_of(data):
    state = jax.jit(algorithm.init)(KEY, data)
    return matrix(tree.take(state.centers, state.assignment))

  drawn = local.model.init(prng_streams.fold(KEY, prng_streams.MODEL))
  start = matrix(tree.expand(drawn))
  bad = bad_of(federation('sign_flip'))
  true, opposite = models_of(federation()), models_of(federation('sign_flip'))
  assert_close(opposite[~bad], true[~bad])
  assert_close(opposite[bad], 2 * start - true[bad])


@pytest.mark.parametrize(
  ('attack', 'fraction', 'subject'),
  [
    ('flip', 0.4, 'attack: unknown'),
    ('backdoor', 0.4, 'attack: backdoor'),
    ('backdoor(x)', 0.4, 'target'),
    ('backdoor(3)', 0.4, 'attack: '),
    ('replacement(inf)', 0.4, 'scale'),
    ('sign_flip(2)', 0.4, 'attack: sign_flip'),
    ('', 0.1, 'attack_fraction'),
    ('noise', 0.01, 'attack_fraction: makes 0 of 8'),
    ('noise', 0.99, 'attack_fraction: makes 8 of 8'),
  ],
)
def test_bad_arguments_are_refused(attack, fraction, subject):
  with pytest.raises(UserError, match=subject):
    attacks.apply(federation(), attack, fraction)


@pytest.mark.slow
def test_metrics_and_files_of_honest_clients_and_a_run_that_goes_on(tmp_path):
  algorithm = algorithms.build('fesem', helpers.local(model='logistic'), num_clusters=2)

  def run(data):
    return simulate(algorithm, data, federation(), rounds=2, workdir=tmp_path / 'run')

  result = run(data := federation('noise'))
  table, kept, output = result.clients, ~bad_of(data), result.summary['honest']
  np.testing.assert_array_equal(table.honest, kept)
  assert output['clients'] == kept.sum()
  for kind in ('deployed', 'finetuned'):
    for name in ('accuracy', 'f1'):
      values, size = table[f'{kind}_{name}'][kept], table.test_examples[kept]
      expected = [np.average(values, weights=size), values.mean()]
      actual = [output[kind][f'{over}_{name}'] for over in ('micro', 'macro')]
      np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert output[kind] != result.summary[kind]
  expected = agreement(table.true_cluster[kept], table.cluster[kept])
  assert {name: output[name] for name in expected} == expected
  clients = [record['honest']['clients'] for record in result.history[1:]]
  assert clients == [kept.sum()] * 2
  np.testing.assert_array_equal(load_run(tmp_path / 'run').clients.honest, kept)
  assert run(federation('noise')).summary == result.summary
  for other in (federation(), federation('sign_flip'), federation('noise', 0.2)):
    with pytest.raises(UserError, match='another run'):
      run(other)


def test_the_success_of_a_backdoor_is_that_of_the_models_on_marked_examples():
  sizes = [8, 12, 10, 6, 9]
  train, test = (helpers.federation(sizes, seed, shape=IMAGE) for seed in (0, 1))
  train = attacks.apply(train, 'backdoor(2)+replacement(4)', 0.4)
  local = helpers.local(model='logistic', shape=IMAGE, devices=2)
  method = algorithms.build('fed_avg', local)
  result = simulate(method, train, test, rounds=2, finetune_epochs=0)
  layer = jax.tree.map(lambda x: np.asarray(x[0], np.float64), result.state.params)
  kernel, bias = layer['logits']['kernel'], layer['logits']['bias']
  rows = ~np.repeat(bad_of(train), np.diff(test.offsets)) & (test.y != 2)
  x = np.array(test.x, np.float64)[rows]
  x[:, 6:, 6:] = np.asarray(train.x).max()
  guess = (x.reshape(len(x), -1) @ kernel + bias).argmax(axis=1)
  reference = (guess == 2).mean()
  assert result.summary['backdoor_success'] == pytest.approx(reference)
  assert result.history[-1]['backdoor_success'] == pytest.approx(reference)
  table = Comparison(result.frames).table
  assert table.cells['backdoor', 'success (%)'].tolist() == [f'{100 * reference:.1f}']
