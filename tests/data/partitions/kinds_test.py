"""Partitions as values of their own classes, which deal as flags do."""

import dataclasses

import numpy as np
import pytest
from fesem_jax.data.partitions.value import FIELDS, NAMES, Partition

from fesem_jax import data, partitions
from fesem_jax.data.partitions import kinds
from fesem_jax.utils.errors import UserError

ROWS = [[30, 10, 20, 0, 5], [7, 1, 8, 2, 6]]
# A value -> the same as flags say it.
CASES = [
  (partitions.Iid(), 'iid', {}),
  (partitions.Unequal(0.3), 'unequal', {'dirichlet_alpha': 0.3}),
  (partitions.Lognormal(1.0), 'lognormal', {'lognormal_sigma': 1.0}),
  (partitions.PowerLaw(sigma=1.0, labels=3), 'power_law',
   {'power_law_sigma': 1.0, 'labels_per_client': 3}),
  (partitions.Dirichlet(1.0, min_examples=5), 'dirichlet',
   {'dirichlet_alpha': 1.0, 'dirichlet_min_examples': 5}),
  (partitions.DirichletLabels(0.1), 'dirichlet_labels', {'dirichlet_alpha': 0.1}),
  (partitions.Labels(3), 'labels', {'labels_per_client': 3}),
  (partitions.Shards(4), 'shards', {'classes_per_client': 4}),
  (partitions.Rows(ROWS), 'rows', {'client_rows': ROWS}),
  (partitions.Noisy(0.2), 'noisy', {'noise_variance': 0.2}),
  (partitions.Noisy(dealt=partitions.Shards()), 'noisy+shards', {}),
  (partitions.Rotated(3), 'rotated', {'partition_groups': 3}),
  (partitions.Rotated([0, 45], sampling='nearest', disjoint=True), 'rotated',
   {'rotations': [0, 45], 'rotation_sampling': 'nearest', 'disjoint_groups': True}),
  (partitions.Rotated(2, dealt=partitions.Dirichlet(0.1)), 'rotated+dirichlet',
   {'partition_groups': 2, 'dirichlet_alpha': 0.1}),
  (partitions.LabelPermuted(2), 'label_permuted', {'partition_groups': 2}),
  (partitions.LabelSwapped(2), 'label_swapped', {'partition_groups': 2}),
  (partitions.LabelSwapped([(1, 7)]), 'label_swapped', {'label_swaps': ['1-7']}),
  (partitions.Corrupted(['none', 'contrast'], strength=5), 'corrupted',
   {'image_corruptions': ['none', 'contrast'], 'corruption_strength': 5}),
  (partitions.Corrupted(2), 'corrupted', {'partition_groups': 2}),
]  # fmt: skip


def color_images():
  rng = np.random.default_rng(0)
  x = rng.integers(0, 256, (200, 8, 8, 3), np.uint8)
  return {'x': x, 'y': rng.integers(0, 8, 200)}


@pytest.mark.parametrize(('value', 'name', 'options'), CASES, ids=lambda x: str(x)[:30])
def test_a_value_deals_as_flags_do(value, name, options):
  common = {'arrays': color_images(), 'seed': 3}
  if name != 'rows':
    common['num_clients'] = 4
  by_value = data.load('mine', partition=value, **common)
  by_name = data.load('mine', partition=name, **options, **common)
  for a, b in zip(by_value, by_name, strict=True):
    for field in ('x', 'y', 'offsets', 'client_ids'):
      np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert a.info.cluster_names == b.info.cluster_names


def test_known_clients_and_clusters():
  arrays = color_images()
  arrays['client'] = np.arange(200) % 9
  arrays['cluster'] = np.arange(200) % 3
  train, test = data.load('mine', arrays=arrays, partition=partitions.Natural(22))
  assert [len(train.info.names), train.info.names[0], len(test.y)] == [9, '0', 38]
  inside = partitions.InClusters(partitions.Labels(1))
  assert inside.flat() == Partition('cluster+labels', labels_per_client=1)
  dealt, _ = data.load('mine', arrays=arrays, partition=inside, num_clients=6)
  assert dealt.info.clusters.tolist() == [0, 1, 2] * 2


def test_every_partition_and_field_has_its_class():
  assert {kind.name for kind in kinds.KINDS} == set(NAMES)
  assert set(partitions.__all__) == {'NAMES', 'Kind'} | {
    kind.__name__ for kind in kinds.KINDS
  }
  assert set(FIELDS) - set(kinds.OF) == {'name', 'num_clients', 'examples_per_client'}
  for kind in set(kinds.KINDS) - {kinds.Rows}:  # Defaults are those of the flags.
    assert kind().flat() == Partition(kind.name)
    assert all(field.name in kind.__doc__ for field in dataclasses.fields(kind))


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: partitions.Dirichlet(alpha=-1), '`alpha=-1`'),
    (lambda: partitions.Labels(0), '`per_client=0`'),
    (lambda: partitions.Rotated(2.5), '`groups=2.5`'),
    (lambda: partitions.Corrupted(['rain']), '^groups: '),
    (lambda: partitions.Rotated(dealt=partitions.LabelPermuted()), 'product'),
  ],
)
def test_a_wrong_value_is_named_by_its_argument(make, message):
  with pytest.raises(UserError, match=message):
    make()


def test_options_are_given_once():
  value = partitions.Dirichlet(0.1)
  with pytest.raises(TypeError, match='dirichlet_alpha'):
    data.load('digits', partition=value, dirichlet_alpha=0.3)
  with pytest.raises(TypeError, match='alpha'):
    partitions.Iid(alpha=0.1)
  with pytest.raises(UserError, match='`drift_rounds=3`'):
    data.load_phases('digits', partition=value, drift_rounds=[3])
