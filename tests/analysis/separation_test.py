"""How far apart groups are: against scikit-learn, float64 and planted groups."""

import json

import numpy as np
import pytest
from sklearn.metrics import calinski_harabasz_score

from fesem_jax.algorithms.common.first_clusters import random_start
from fesem_jax.analysis import separation
from fesem_jax.analysis.separation import Measured, Separation
from fesem_jax.core import prng_streams
from fesem_jax.core.client_work import ClientWork
from fesem_jax.data.splits import halves
from fesem_jax.run.rounds import keys_of_run
from fesem_jax.training.compression import compression
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.commands import call

SIZES = [9, 1, 6, 7, 8]


def halves_of(spread, inner, noise, count=240, k=4, size=50, seed=0):
  """Halves of clients in k groups with these variances, and the groups."""
  rng, truth = np.random.default_rng(seed), np.arange(count) % k

  def drawn(variance, number):
    return rng.normal(size=(number, size)) * np.sqrt(variance / size)

  own = drawn(spread, k)[truth] + drawn(inner, count)
  return own + drawn(noise, count), own + drawn(noise, count), truth


def test_the_ratio_of_mean_squares_is_scikit_learns():
  points, _, truth = halves_of(1.0, 0.5, 0.5)
  for labels in (truth, 3 - truth, np.minimum(truth, 1)):
    between, within, size = separation.components(points, labels)
    want = calinski_harabasz_score(points, labels)
    assert between / within == pytest.approx(want)
    assert size == pytest.approx(60 if len(set(labels)) == 4 else 90)
  for labels in (np.zeros(240, int), np.arange(240)):
    assert separation.components(points, labels) == (0.0, 0.0, 1.0)


def test_noise_of_sampling_is_no_difference_between_clients():
  first, second, truth = halves_of(2.0, 0.5, 3.0, count=120, size=800)
  assert separation.noise(first, second) == pytest.approx(3.0, rel=0.05)
  (row,), _ = separation.separations(first, second, [4], seed=0)
  # The four groups vary by 2 about the mean of all groups, not of these four.
  between, within, size = separation.components(first, truth)
  apart = (between - within) / size
  np.testing.assert_allclose(within, 3.5, rtol=0.05)
  np.testing.assert_allclose(row.explained, apart / (apart + 0.5), rtol=0.05)
  np.testing.assert_allclose(row.ratio, apart / within, rtol=0.05)
  assert row.agreement == 1
  assert row.p_value == 0.05
  assert separation.p_of_differences(first, second, 0) == 0.001


@pytest.mark.nightly
def test_clusters_that_are_not_there_are_not_found():
  first, second, _ = halves_of(0.0, 0.0, 1.0, count=60)
  assert separation.p_of_differences(first, second, 0) > 0.05
  rows, _ = separation.separations(first, second, [2, 3], seed=0)
  # k-means makes clusters of one half; the other one knows nothing of them.
  assert all(row.pseudo_f == pytest.approx(1, abs=0.4) for row in rows)
  # Clients differ, but in one Gaussian cloud.
  first, second, _ = halves_of(0.0, 4.0, 0.1, count=60)
  assert separation.p_of_differences(first, second, 0) == 0.001
  rows, _ = separation.separations(first, second, [2, 3], seed=0)
  assert not any(map(separation.told_apart, rows))
  assert rows[0].pseudo_f == pytest.approx(rows[0].of_one_cloud, rel=0.3)
  # Not defined for as many clusters as clients.
  (row,), _ = separation.separations(first[:5], second[:5], [5], seed=0)
  assert row == Separation(5)
  assert not separation.told_apart(row)


@pytest.mark.parametrize('size', [30, 120])
def test_the_detectable_difference_is_found_four_times_in_five(size):
  first, second, _ = halves_of(0.0, 0.0, 1.0, count=60, size=size)
  share = separation.detectable(first, second)

  def power(share):
    found = []
    for seed in range(60):
      parts = halves_of(0.0, share, 1 - share, count=60, size=size, seed=seed)
      found.append(separation.p_of_differences(*parts[:2], seed) <= 0.05)
    return np.mean(found)

  assert power(share) == pytest.approx(0.8, abs=0.12)
  assert power(share / 4) < 0.4
  assert separation.detectable(first[:3], second[:3]) <= 1


def test_halves_share_no_example_and_weigh_alike():
  data = helpers.federation(SIZES)
  parts, clients = halves(data, seed=3)
  np.testing.assert_array_equal(clients, [0, 2, 3, 4])
  np.testing.assert_array_equal(parts.sizes(), [4, 3, 3, 4] * 2)
  for place, i in enumerate(clients):
    rows = np.concatenate([parts.client(place)[0], parts.client(place + 4)[0]])
    own = {tuple(row) for row in data.client(i)[0]}
    found = {tuple(row) for row in rows}
    assert len(found) == len(rows)
    assert found <= own
  other, _ = halves(data, seed=4)
  assert not np.array_equal(other.x, parts.x)


def test_gradients_are_those_of_a_float64_reference():
  data, local = helpers.federation(SIZES), helpers.local(rate=0.01)
  found = separation.separation(local, data, [2], models=2, seed=5)
  np.testing.assert_array_equal(found.clients, [0, 2, 3, 4])
  parts, _ = halves(data, seed=5)
  vectors = []
  for seed in (5, 6):
    key = keys_of_run(seed, local.mesh)[prng_streams.INIT]
    start = random_start(local, data, key, 'common').shared
    model = reference.from_params(start, 0)
    each = [reference.loss_and_gradient(model, *parts.client(i))[1] for i in range(8)]
    vectors.append([reference.flat(gradient) for gradient in each])
  first, second = np.split(np.hstack(vectors), 2)
  spread = np.mean([p.var(axis=0, ddof=1).sum() for p in (first, second)])
  want = np.square(first - second).sum(axis=1).mean() / 2 / spread
  np.testing.assert_allclose(found.noise, min(want, 1), rtol=1e-3)
  assert found.p_differ == separation.p_of_differences(first, second, 5)
  with pytest.raises(UserError, match='train'):
    separation.separation(local, helpers.federation([1, 4, 1, 3]), [2])


def test_neither_work_nor_compression_is_in_gradients():
  data, local = helpers.federation(SIZES), helpers.local(rate=0.01)
  plain = separation.separation(local, data, [2], models=1)
  work = ClientWork(rates=np.linspace(0.1, 1.0, 12))
  for changed in ({'work': work}, {'sends': compression('top_k:0.1')}):
    found = separation.separation(local._replace(**changed), data, [2], models=1)
    assert (found.noise, found.rows) == (plain.noise, plain.rows)


@pytest.mark.parametrize(
  ('p_differ', 'rows', 'said'),
  [
    (0.3, [(2, 9.0, 4.0, 0.05, 1.0, 0.8, 0.9)],
     'No difference between clients is detected (p = 0.3).*With 9 clients of 24 '
     'training examples (median), differences are detected reliably if they make at '
     'least 2.5 %'),
    (0.001, [(2, 9.0, 4.0, 0.10, 1.0, 0.8, 0.9)], 'no K tried gives groups'),
    (0.001, [(2, 9.0, 4.0, 0.05, 1.0, 0.8, 0.7)], 'no K tried gives groups'),
    (0.001, [(2, 9.0, 4.0, 0.05, 1.0, 0.6, 0.9), (3, 8.0, 4.0, 0.05, 1.0, 0.8, 0.8)],
     'K = 3 groups can be separated: they explain 80 %.*explaining less: K = 2'),
  ],
)  # fmt: skip
def test_the_verdict(p_differ, rows, said):
  rows = [Separation(*row) for row in rows]
  found = Measured(0.5, p_differ, rows, [], np.arange(9), 24.0, 0.025)
  assert said.partition('.*')[0] in separation.verdict(found)
  assert said.rpartition('.*')[2] in separation.verdict(found)


def test_the_binary_writes_draws_and_names_mistakes(tmp_path):
  small = ['--num_clients=12', '--hidden=8', '--separation_models=1']
  groups = ['--partition=rotated', '--partition_groups=2', '--num_clusters_list=2,3']
  done = call('separation', *small, *groups, '--workdir=out', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  made = json.loads((tmp_path / 'out/separation.json').read_text())
  assert made['verdict'] in done.stdout
  assert [row['num_clusters'] for row in made['rows']] == [2, 3]
  two = made['rows'][0]
  assert (two['told_apart'], two['ari'], made['num_clients']) == (True, 1.0, 12)
  assert (tmp_path / 'out/plots/separation.png').stat().st_size > 5000
  wrong = '--num_clusters_list=2,12'
  done = call('separation', *small, wrong, '--workdir=no', cwd=tmp_path)
  assert done.returncode == 1
  assert '--num_clusters_list: ' in done.stderr
  assert not (tmp_path / 'no').exists()
