"""Choosing K: what speaks for a number of clusters, the rule, and the binary."""

import json
import re

import jax
import numpy as np
import pytest
from absl import flags
from sklearn.metrics import silhouette_score

from experiments import flags as experiment_flags
from experiments import select_k
from experiments.build import load_data
from fesem_jax.analysis import num_clusters
from fesem_jax.core import prng_streams, sharding
from tests.algorithms.first_clusters_test import trained_from_one_start
from tests.support import helpers, reference
from tests.support.commands import call, flags_of_a_new_process


def gram_of(points):
  centered = points - points.mean(axis=0)
  return centered @ centered.T


def test_the_silhouette_is_that_of_the_planted_clusters():
  points, truth = helpers.blobs(40, k=3)
  points = points.astype(np.float64)
  points_again = num_clusters.coordinates(gram_of(points))
  one, three, all_alone = (
    num_clusters.silhouette(points_again, k, seed=0) for k in (1, 3, 40)
  )
  assert three == pytest.approx(silhouette_score(points, truth))
  assert one is None
  assert all_alone is None
  assert num_clusters.silhouette(np.zeros((5, 3)), 2, seed=0) == 0
  assert num_clusters.silhouette(np.zeros((2, 1)), 2, seed=0) is None


def test_one_cloud_keeps_mean_and_covariance_and_no_clusters():
  points, _ = helpers.blobs(40, k=3, size=60)
  points = points.astype(np.float64)
  cloud = num_clusters.one_cloud(points, np.random.default_rng(0))
  np.testing.assert_allclose(cloud.mean(axis=0), points.mean(axis=0), atol=1e-9)
  np.testing.assert_allclose(np.cov(cloud.T), np.cov(points.T), atol=1e-9)
  score, of_clouds, p = num_clusters.against_one_cloud(points, 3, seed=0)
  assert score > 0.3 + of_clouds
  assert p == 0.05
  assert num_clusters.against_one_cloud(points, 1, seed=0) is None


@pytest.mark.nightly
def test_one_gaussian_cloud_of_any_covariance_is_no_exception_among_its_rotations():
  rng = np.random.default_rng(0)
  p_values = []
  for seed in range(10):
    points = rng.normal(size=(30, 60)) * np.geomspace(10, 0.1, 60)[None]
    p_values.append(num_clusters.against_one_cloud(points, 2, seed)[-1])
  # Uniform: half a case of ten at 0.05, five of ten below the middle.
  assert sum(p <= 0.05 for p in p_values) <= 2
  assert 1 <= sum(p <= 0.5 for p in p_values) <= 9


def test_stability_is_the_mean_over_pairs_whatever_the_names_of_clusters():
  a, b, c = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
  assert num_clusters.stability([a, b]) == 1
  assert num_clusters.stability([a, b, c]) == pytest.approx((1 - 0.5 - 0.5) / 3)
  assert num_clusters.stability([a]) is None


# Silhouette, that of one cloud, p and stability of K = 1, 2, 3, ...
NONE = (None, None, None, None)


@pytest.mark.parametrize(
  ('figures', 'recommended', 'why'),
  [
    ([NONE], 1, 'the only number'),
    # The largest silhouette is not the farthest above its cloud.
    ([NONE, (0.30, 0.20, 0.05, 1.0), (0.28, 0.1, 0.05, 1.0), (0.2, 0.1, 0.05, 0.9)],
     3, r'K = 3: its silhouette is 0\.18 above'),
    # Farther above it, but not again; or again, but not above it.
    ([NONE, (0.20, 0.10, 0.05, 0.8), (0.30, 0.1, 0.05, 0.79), (0.1, 0.1, 0.05, 1)],
     2, 'K = 2: .*ARI 0.80'),
    ([NONE, (0.20, 0.10, 0.05, 0.9), (0.30, 0.1, 0.10, 1.0), (0.1, 0.1, 0.05, 1)],
     2, 'K = 2'),
    # The largest tried.
    ([NONE, (0.10, 0.09, 0.05, 1.0), (0.28, 0.1, 0.05, 1.0)], 3, 'try larger ones'),
    # No clusters: no tighter than a cloud, or others with each seed.
    ([NONE, (0.08, 0.08, 0.60, 0.9), (0.07, 0.08, 0.80, 1.0)], 1, 'one Gaussian cloud'),
    ([NONE, (0.09, 0.08, 0.05, 0.1), (0.07, 0.06, 0.05, 0.3)], 1,
     'are not stable.*K = 3: ARI 0.30'),
    # One seed, a K that diverged, as many clusters as clients.
    ([NONE, (0.30, 0.10, 0.05, None)], None, 'two seeds'),
    ([NONE, NONE, (0.28, 0.1, 0.05, 1.0), (None, None, None, 1.0)], 3, 'K = 3'),
  ],
)  # fmt: skip
def test_the_recommended_k_and_its_reason(figures, recommended, why):
  names = ('silhouette_mean', 'silhouette_of_one_cloud', 'p_value', 'stability')
  rows = [
    {'num_clusters': k, **dict(zip(names, f, strict=True))}
    for k, f in enumerate(figures, start=1)
  ]
  for order in (rows, rows[::-1]):
    result, reason = num_clusters.recommend(order)
    assert result == recommended
    assert re.search(why, reason)
    assert ('larger ones' in reason) == ('larger ones' in why)


@pytest.mark.nightly
def test_the_inner_products_are_those_of_the_models_that_start_fesem():
  data = helpers.federation([9, 3, 12, 5, 7])
  local, seed = helpers.local(), 3
  result = num_clusters.inner_products(local, data, epochs=2, seed=seed)
  key = prng_streams.folded(jax.random.key(seed), prng_streams.INIT)
  key = sharding.replicate(key, local.mesh)
  models = trained_from_one_start(local, data, key, epochs=2)
  want = gram_of(np.stack([reference.flat(m) for m in models]))
  np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-5)


SMALL = ('--num_clients=12', '--hidden=8')


@pytest.mark.parametrize('flag', ['1,3,2', '0,1', '1,13'])
def test_numbers_of_clusters_that_cannot_be_tried_are_refused(tmp_path, flag):
  done = call('select_k', *SMALL, f'--num_clusters_list={flag}', cwd=tmp_path)
  assert done.returncode == 1
  assert '--num_clusters_list: ' in done.stderr
  assert not list(tmp_path.iterdir())


def test_the_same_clients_are_chosen_for_all_seeds_and_no_test_examples():
  with flags_of_a_new_process():
    experiment_flags.define()
    flags.FLAGS(['select_k', *SMALL])
    config = experiment_flags.configuration('fesem', {})
    whole, _ = load_data(config)
    train, again = (select_k.choose_clients(config, '', 5) for _ in range(2))
    other = select_k.choose_clients(config | {'seed': 1}, '', 5)
    assert select_k.choose_clients(config, '', 100).num_clients == 12
  assert train.num_clients == 5
  np.testing.assert_array_equal(train.info.names, again.info.names)
  np.testing.assert_array_equal(train.x, again.x)
  for name in train.info.names:
    i = int(np.flatnonzero(whole.info.names == name)[0])
    j = int(np.flatnonzero(train.info.names == name)[0])
    part = set(map(bytes, train.client(j)[0]))
    assert part < set(map(bytes, whole.client(i)[0]))
  assert list(other.info.names) != list(train.info.names)


@pytest.mark.slow
def test_a_selection_is_written_and_printed(tmp_path):
  done = call(
    'select_k', *SMALL, '--examples_per_client=200', '--model=logistic',
    '--partition=rotated(2)', '--num_clusters_list=1,2', '--num_seeds=2', '--seed=5',
    '--workdir=k', cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  made = json.loads((tmp_path / 'k/select_k.json').read_text())
  assert made['recommended'] == 2
  assert made['reason'] in done.stdout
  assert (made['seeds'], made['num_clients']) == ([5, 6], 12)
  one, two = (made['by_k'][k] for k in '12')
  assert one['silhouette_mean'] is one['p_value'] is one['stability'] is None
  assert one['sizes'] == [[12], [12]]
  assert two['sizes'] == [[6, 6], [6, 6]]
  assert (two['stability'], two['ari'], two['p_value']) == (1, 1, 0.05)
