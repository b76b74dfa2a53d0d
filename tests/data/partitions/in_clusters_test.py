"""Clients are dealt inside of known clusters, which stay the truth."""

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.evaluation import label_skew
from fesem_jax.utils.errors import UserError
from tests.support.commands import call

NAMES = ('art', 'clip', 'real')
SIZES = (90, 150, 240)


def domains(seed=0, **others):
  """Rows of three domains; the first feature is the row, the second the domain."""
  rng = np.random.default_rng(seed)
  domain = rng.permutation(np.repeat(np.arange(3), SIZES))
  x = np.stack([np.arange(480) / 480, domain], axis=1)
  return {'x': x, 'y': np.arange(480) % 5, 'cluster': np.array(NAMES)[domain]} | others


RULES = {
  'cluster': {}, 'cluster+iid': {}, 'dirichlet+cluster': {'dirichlet_alpha': 0.3},
  'cluster+dirichlet': {'dirichlet_alpha': 0.3, 'dirichlet_min_examples': 5},
  'cluster+dirichlet_labels': {'dirichlet_alpha': 0.3},
  'cluster+labels': {'labels_per_client': 5},
  'cluster+power_law': {'labels_per_client': 4, 'power_law_sigma': 0.5},
  'cluster+shards': {}, 'cluster+unequal': {}, 'cluster+lognormal': {},
  'cluster+noisy': {'noise_variance': 1e-9},
}  # fmt: skip


@pytest.mark.parametrize('clients', [False, True])
@pytest.mark.parametrize('split', [False, True])
@pytest.mark.parametrize('partition', RULES)
def test_examples_stay_in_their_cluster(partition, split, clients):
  own = domains()
  if split:
    own['split'] = np.arange(480) // 5 % 2
  if clients:  # Which are dealt anew.
    own['client'] = np.char.add(own['cluster'], (np.arange(480) % 2).astype(str))
  options = {'partition': partition, 'num_clients': 9, **RULES[partition]}
  train, test = data.load('mine', arrays=own, **options)
  for part in (train, test):
    assert part.info.clusters.tolist() == [*NAMES] * 3
    for i in range(9):
      x, y = part.client(i)
      rows = np.round(x[:, 0] * 480).astype(int)
      assert (own['cluster'][rows] == NAMES[i % 3]).all()
      np.testing.assert_array_equal(own['y'][rows], y)
      if split:
        assert (own['split'][rows] == (part is test)).all()
  dealt = np.round(np.concatenate([train.x[:, 0], test.x[:, 0]]) * 480).astype(int)
  assert len(set(dealt.tolist())) == len(dealt)
  assert len(dealt) == 480
  again, _ = data.load('mine', arrays=own, **options)
  np.testing.assert_array_equal(again.x, train.x)
  other, _ = data.load('mine', arrays=own, seed=1, **options)
  assert other.x.shape != train.x.shape or (other.x != train.x).any()


def test_labels_are_skewed_inside_of_clusters():
  alike, _ = data.load('mine', arrays=domains(), num_clients=9)  # The default.
  skewed, _ = data.load(
    'mine', arrays=domains(), num_clients=9, partition='cluster+dirichlet',
    dirichlet_alpha=0.1,
  )  # fmt: skip
  assert np.asarray(alike.sizes()).tolist() == [24, 40, 64] * 3
  of_alike, of_skewed = (
    label_skew.label_skew(label_skew.label_counts(train)) for train in (alike, skewed)
  )
  assert of_alike < 0.2 < 0.4 < of_skewed


def test_sizes_may_be_asked_for():
  for partition in ('cluster', 'cluster+dirichlet_labels'):
    train, _ = data.load(
      'mine', arrays=domains(), partition=partition, num_clients=6,
      examples_per_client=20,
    )  # fmt: skip
    assert np.asarray(train.sizes()).tolist() == [20] * 6


def test_clusters_of_a_regression_and_of_numbers():
  own = domains(task='regression', cluster=np.repeat([7, 7, 30], 160))
  train, _ = data.load('mine', arrays=own, num_clients=4)
  assert train.info.clusters.tolist() == [0, 1] * 2
  assert train.info.cluster_names == ('7', '30')
  with pytest.raises(UserError, match='Cluster 30'):
    data.load('mine', arrays=own, num_clients=200)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'num_clients': 2}, '`num_clients=2`'),
    ({'partition': 'natural'}, 'no natural clients'),
    ({'partition': 'cluster+rotated'}, 'product'),
    ({'partition': 'cluster+cluster'}, 'product'),
    ({'num_clients': 9, 'examples_per_client': 30}, 'Cluster art'),
  ],
)
def test_clusters_that_cannot_be_dealt_are_named(options, message):
  with pytest.raises(UserError, match=message):
    data.load('mine', arrays=domains(), **options)


def test_data_without_clusters_are_named():
  with pytest.raises(UserError, match='known clusters'):
    data.load('digits', partition='cluster+iid', num_clients=4)


def test_the_command_line_deals_and_runs_the_oracle(tmp_path):
  np.savez(tmp_path / 'mine.npz', **domains())
  shared = (
    '--dataset=npz:mine.npz', '--partition=cluster+dirichlet', '--num_clients=6',
  )  # fmt: skip
  made = call('data', *shared, '--output=six.npz', cwd=tmp_path)
  assert made.returncode == 0, made.stderr
  run = call(
    'run', *shared, '--algorithm=oracle', '--model=logistic', '--rounds=1',
    '--workdir=w', '--report_html=false', cwd=tmp_path,
  )  # fmt: skip
  assert run.returncode == 0, run.stderr
