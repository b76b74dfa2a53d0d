"""Labels and sizes of clients are as the papers deal them."""

import time

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.core import prng_streams
from fesem_jax.data.partitions import rows, shares
from fesem_jax.evaluation import label_skew
from fesem_jax.utils.errors import UserError
from tests.support.sources import sizes


def two_splits(train=2000, test=500, classes=10, seed=0):
  """Arrays whose only feature is the row number."""
  rng = np.random.default_rng(seed)
  total = train + test
  return {
    'x': np.arange(total, dtype=np.float32)[:, None],
    'y': rng.integers(0, classes, total),
    'client': np.zeros(total, int),
    'split': np.repeat([0, 1], [train, test]),
  }


def deal(partition, arrays=None, **options):
  return data.load(
    'rows', arrays=two_splits() if arrays is None else arrays, partition=partition,
    **options,
  )  # fmt: skip


@pytest.mark.parametrize('name', ['iid', 'unequal', 'dirichlet', 'shards'])
def test_partitions_of_earlier_versions_deal_the_same_examples(name):
  arrays = two_splits()
  train, test = deal(name, arrays, num_clients=7, seed=3)
  rng = prng_streams.host_rng(3, prng_streams.PARTITION)
  of_classes = rng.dirichlet(np.full(7, 0.5), 10)
  dealt = rng.permutation(14).reshape(7, 2)
  for split, part in ((train, 0), (test, 1)):
    y = arrays['y'][arrays['split'] == part]
    if name == 'iid':
      want = rows.iid(rng, len(y), 7)
    elif name == 'shards':
      want = rows.by_shards(y, dealt)
    elif name == 'unequal':
      want = rows.by_shares(rng, np.zeros_like(y), of_classes[:1], 1 - part)
    else:
      want = rows.by_shares(rng, y, of_classes, 1 - part)
    for i in range(7):
      np.testing.assert_array_equal(split.client(i)[0][:, 0], want[i] + 2000 * part)


@pytest.mark.parametrize('per_client', [1, 2, 3, 10])
def test_labels_are_dealt_as_in_niid_bench(per_client):
  train, test = deal('labels', num_clients=25, labels_per_client=per_client)
  counts, of_test = (label_skew.label_counts(split) for split in (train, test))
  has = counts > 0
  assert (has.sum(axis=1) == per_client).all()
  assert has[np.arange(25), np.arange(25) % 10].all()
  for label in range(10):
    for dealt in (counts, of_test):
      mine = dealt[has[:, label], label]
      assert np.ptp(mine) <= 1  # Equally among its clients,
      assert not dealt[~has[:, label], label].any()  # and nobody else.
  assert (counts.sum(), of_test.sum()) == (2000, 500)
  if per_client == 3:  # The others are drawn: not the next ones.
    assert not has[np.arange(25), (np.arange(25) + 1) % 10].all()


def test_labels_that_no_client_has_are_not_dealt():
  train, _ = deal('labels', num_clients=4, labels_per_client=1)
  assert sorted(set(train.y.tolist())) == [0, 1, 2, 3]


def test_capped_dirichlet_follows_niid_bench():
  labels = two_splits()['y'][:2000]
  rng = np.random.default_rng(5)
  found = shares.capped_dirichlet(rng, labels, 10, 20, 0.3, 30)
  again = np.random.default_rng(5)
  counts = np.bincount(labels, minlength=10)
  while True:  # The same from the words of the paper's code.
    held, want = np.zeros(20), np.zeros((10, 20))
    for label in range(10):
      p = again.dirichlet(np.repeat(0.3, 20))
      p = np.array([v * (n < 2000 / 20) for v, n in zip(p, held, strict=True)])
      if p.sum() == 0:
        break
      want[label] = p / p.sum()
      ends = np.round(np.cumsum(want[label]) * counts[label]).astype(int)
      held += np.diff(ends, prepend=0)
    else:
      if held.min() >= 30:
        break
  np.testing.assert_allclose(found, want)


def test_dirichlet_keeps_the_least_size_and_deals_everything():
  options = {'num_clients': 20, 'dirichlet_alpha': 0.3, 'dirichlet_min_examples': 40}
  train, test = deal('dirichlet', **options)
  assert sizes(train).min() >= 40
  assert (sizes(train).sum(), sizes(test).sum()) == (2000, 500)
  skewed, _ = deal('dirichlet', num_clients=20, dirichlet_alpha=0.3)
  assert sizes(skewed).min() < 40
  assert sizes(train).max() < sizes(skewed).max()
  share = label_skew.label_counts(train)[:, 0] / (train.y == 0).sum()
  of_test = label_skew.label_counts(test)[:, 0] / (test.y == 0).sum()
  assert np.abs(share - of_test).max() < 0.02  # Both splits alike.


def test_lognormal_sizes_have_their_deviation_and_iid_labels():
  arrays = two_splits(40000, 4000)
  train, test = deal('lognormal', arrays, num_clients=400, lognormal_sigma=0.5)
  logarithms = np.log(sizes(train))
  assert abs(logarithms.std() - 0.5) < 0.06
  assert np.abs(sizes(train) / 10 - sizes(test)).max() <= 1.1
  counts = label_skew.label_counts(train)
  assert label_skew.label_skew(counts) < 0.15
  alike, _ = deal('lognormal', arrays, num_clients=400, lognormal_sigma=0.0)
  assert np.ptp(sizes(alike)) <= 1


def test_power_law_is_that_of_fedprox():
  train, _ = deal('power_law', two_splits(9000, 900), num_clients=100)
  counts = label_skew.label_counts(train)
  for i in range(100):
    assert set(np.flatnonzero(counts[i])) == {i % 10, (i + 1) % 10}
  assert counts[counts > 0].min() >= 4  # 5, but for rounding.
  assert counts.sum() == 9000
  total = counts.sum(axis=1)
  assert total.max() > 10 * np.median(total)
  flat, _ = deal('power_law', num_clients=100, power_law_sigma=0.0, labels_per_client=3)
  assert np.ptp(sizes(flat)) <= 8


def test_a_product_deals_labels_inside_every_group():
  arrays = two_splits(4000, 800)
  arrays['x'] = np.arange(4800, dtype=np.float32)[:, None]
  train, test = deal(
    'label_swapped+dirichlet', arrays, num_clients=24, partition_groups=3,
    dirichlet_alpha=0.2, dirichlet_min_examples=20,
  )  # fmt: skip
  assert train.info.clusters.tolist() == list(range(3)) * 8
  assert train.info.cluster_names[1] == 'labels 1 and 2 swapped'
  for split, count, first in ((train, 4000, 0), (test, 800, 4000)):
    for group in range(3):
      members = np.flatnonzero(split.info.clusters == group)
      held = np.concatenate([split.client(i)[0][:, 0] for i in members])
      assert sorted(held) == list(range(first, first + count))  # Each holds all.
  assert sizes(train).min() >= 20
  assert label_skew.label_skew(label_skew.label_counts(train)) > 0.4
  turned, _ = deal(
    'dirichlet+label_swapped', arrays, num_clients=24, partition_groups=3,
    dirichlet_alpha=0.2, dirichlet_min_examples=20,
  )  # fmt: skip
  np.testing.assert_array_equal(turned.y, train.y)  # Whatever the order of names.


def test_a_product_of_disjoint_groups_with_fewer_examples():
  train, _ = deal(
    'label_permuted+unequal', num_clients=12, partition_groups=3,
    examples_per_client=50, disjoint_groups=True, dirichlet_alpha=1.0,
  )  # fmt: skip
  assert sizes(train).sum() == 600
  assert len(set(train.x.ravel().tolist())) == 600
  assert np.ptp(sizes(train)) > 10
  with pytest.raises(UserError, match='needs more than the 667 examples there are'):
    deal(
      'label_permuted+unequal', num_clients=12, partition_groups=3,
      examples_per_client=200, disjoint_groups=True,
    )  # fmt: skip


def test_labels_are_dealt_in_equal_sizes_as_hsu_et_al_do():
  options = {'num_clients': 20, 'dirichlet_alpha': 0.5}
  train, test = deal('dirichlet_labels', **options)
  assert (sizes(train) == 100).all()
  assert (sizes(test) == 25).all()
  for split in (train, test):  # Every example is dealt once.
    assert len(set(split.x.ravel().tolist())) == len(split.y) == sizes(split).sum()
  counts, of_test = (label_skew.label_counts(split) for split in (train, test))
  # A client's test examples have the labels of its training examples.
  alike = np.abs(counts / 100 - of_test / 25).sum(axis=1).mean()
  other = np.abs(counts / 100 - np.roll(of_test, 1, axis=0) / 25).sum(axis=1).mean()
  assert alike < other / 2
  skews = [
    label_skew.label_skew(
      label_skew.label_counts(
        deal('dirichlet_labels', num_clients=20, dirichlet_alpha=alpha)[0]
      )
    )
    for alpha in (0.1, 1.0, 10.0, 1e4)
  ]
  assert sorted(skews, reverse=True) == skews
  assert skews[0] > 0.7
  assert skews[-1] < 0.15
  train, test = deal(
    'dirichlet_labels', num_clients=7, examples_per_client=31, dirichlet_alpha=0.1
  )
  assert (sizes(train) == 31).all()
  assert np.ptp(sizes(test)) <= 1


def test_distributions_of_clients_are_dirichlet_draws_around_the_labels():
  labels = np.repeat([0, 1, 3], [100, 300, 600])
  drawn = shares.labels_of_clients(np.random.default_rng(0), labels, 5, 20_000, 4.0)
  expected = np.array([0.1, 0.3, 0.0, 0.6, 0.0])
  np.testing.assert_allclose(drawn.sum(axis=1), 1, rtol=1e-12)
  np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=0.01)
  variance = expected * (1 - expected) / (4.0 + 1)  # Of Dir(alpha p).
  np.testing.assert_allclose(drawn.var(axis=0), variance, atol=0.003)


def test_many_clients_take_their_least_examples_from_the_largest():
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 4, 500)
  of_classes = rng.dirichlet(np.full(120, 0.1), 4)
  dealt = rows.by_shares(np.random.default_rng(1), labels, of_classes, 3)
  # As before: the largest client is looked for again each time.
  left = rows.by_shares(np.random.default_rng(1), labels, of_classes, 0)
  for i in range(len(left)):
    while len(left[i]) < 3:
      largest = int(np.argmax([len(own) for own in left]))
      need = min(3 - len(left[i]), len(left[largest]) - 3)
      left[i] = np.concatenate([left[i], left[largest][:need]])
      left[largest] = left[largest][need:]
  for own, wanted in zip(dealt, left, strict=True):
    np.testing.assert_array_equal(own, wanted)
  arrays = two_splits(60_000, 0)
  del arrays['split']  # Which has no test examples.
  began = time.monotonic()
  many = deal('dirichlet', arrays, num_clients=20_000)[0]
  assert many.num_clients == 20_000
  assert time.monotonic() - began < 20  # Was minutes.


@pytest.mark.parametrize(
  ('partition', 'options', 'message'),
  [
    ('dirichlet', {'dirichlet_min_examples': 101},
     '`dirichlet_min_examples=101`: no d'),
    ('dirichlet', {'dirichlet_min_examples': 95, 'dirichlet_alpha': 0.01},
     '`dirichlet_alpha=0.01` gives each of 20 clients so many of 2000 examples'),
    ('labels', {'labels_per_client': 11}, '`labels_per_client=11` is more than the 10'),
    ('labels', {'labels_per_client': 0}, '`labels_per_client=0` must be at least 1'),
    ('labels', {'num_clients': 1999}, '`num_clients=1999`'),
    ('lognormal', {'lognormal_sigma': -1.0}, '`lognormal_sigma=-1.0` must be at least'),
    ('power_law', {'power_law_sigma': np.nan}, '`power_law_sigma=nan` must be at lea'),
  ],
)  # fmt: skip
def test_impossible_shares_are_named(partition, options, message):
  with pytest.raises(UserError, match=message):
    deal(partition, **{'num_clients': 20} | options)
