"""Examples are dealt to clients as the partition says."""

import numpy as np
import pytest
from sklearn import datasets

from fesem_jax import data
from fesem_jax.core import batching
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import attacks, partitions
from fesem_jax.data.partitions import rotation
from fesem_jax.evaluation import label_skew
from fesem_jax.utils.errors import UserError
from tests.support.sources import own_arrays, sizes


def rows_as_set(split):
  return [x.tobytes() for x in np.asarray(split.x)]


def test_pixels_are_scaled_and_tokens_are_not():
  y, sizes = np.array([True, False, True]), [2, 1]
  for shape in ((3, 4, 4), (3, 4, 4, 3)):
    images = FederatedData.from_arrays(np.ones(shape, np.uint8), y, sizes)
    assert (images.scale, images.num_classes) == (1 / 255, 2)
  tokens = np.array([[7, 255, 0], [1, 2, 3], [250, 9, 9]])
  for dtype, scale in ((np.uint8, 1.0), (np.int64, None), (np.uint16, None)):
    data = FederatedData.from_arrays(tokens.astype(dtype), y, sizes, scale=scale)
    x, _ = batching.gather(data, np.int32(0), np.arange(2))
    np.testing.assert_array_equal(x, tokens[:2])
  row = FederatedData.from_arrays(tokens.astype(np.uint8), y, sizes, scale=1 / 255)
  x, _ = batching.gather(row, np.int32(1), np.arange(1))
  np.testing.assert_allclose(x, tokens[2:] / 255, rtol=1e-6)


def test_digits_are_scikit_learns():
  ours, theirs = data.digits.load(), datasets.load_digits()
  np.testing.assert_array_equal(ours.x * ours.scale * 16, theirs.images)
  np.testing.assert_array_equal(ours.y, theirs.target)


@pytest.mark.parametrize(
  'name', [p for p in partitions.NAMES if p not in ('natural', 'rows', 'cluster')]
)
def test_partitions_of_digits_are_seeded_and_split_80_20(name):
  # Clients of two examples, as a smaller alpha leaves some, are split 1 to 1.
  options = {'dirichlet_alpha': 5.0} if name == 'unequal' else {}
  options |= {'power_law_sigma': 0.5} if name == 'power_law' else {}

  def load(seed):
    return data.load('digits', partition=name, num_clients=20, seed=seed, **options)

  (train, test), (again, _), (other, _) = load(0), load(0), load(1)
  assert train.num_clients == test.num_clients == 20
  np.testing.assert_array_equal(train.x, again.x)
  assert train.x.shape != other.x.shape or (train.x != other.x).any()
  assert sizes(train).min() >= 1
  total = sizes(train) + sizes(test)
  assert (np.abs(sizes(train) - 0.8 * total) <= 0.5).all()
  grouped = name in partitions.value.GROUPED
  copies = 4 if grouped else 1
  assert total.sum() == copies * 1797
  assert (train.info.clusters is not None) == grouped
  assert train.x.dtype == (np.float32 if name == 'noisy' else np.uint8)
  assert train.scale == 1 / 16
  if copies == 1:  # Nothing is in two places.
    pixels = rows_as_set(train) + rows_as_set(test)
    assert len(set(pixels)) == len(set(rows_as_set(train))) + len(
      set(rows_as_set(test))
    )


@pytest.mark.parametrize('partition_of', ['rotated', 'label_permuted'])
def test_one_group_changes_nothing_and_seven_are_seven(partition_of):
  def load(k):
    return data.load(
      'digits', partition=partition_of, num_clients=14, partition_groups=k
    )

  (one, _), (seven, _) = load(1), load(7)
  pool = data.digits.load()
  truth = {x.tobytes(): y for x, y in zip(pool.x, pool.y, strict=True)}
  assert all(truth[x.tobytes()] == y for x, y in zip(one.x, one.y, strict=True))
  assert one.info.clusters.tolist() == [0] * 14
  assert seven.info.clusters.tolist() == list(range(7)) * 2
  assert sizes(seven).sum() == pytest.approx(7 * 0.8 * 1797, rel=0.01)


def test_one_client_alone_holds_everything():
  train, test = data.load('digits', num_clients=1, partition='dirichlet')
  assert (sizes(train).tolist(), sizes(test).tolist()) == ([1438], [359])


def test_label_permuted_groups_relabel_consistently():
  train, _ = data.load('digits', partition='label_permuted', num_clients=8)
  pool = data.digits.load()
  truth = {x.tobytes(): y for x, y in zip(pool.x, pool.y, strict=True)}
  maps = []
  for group in range(4):
    mapping = {}
    for i in np.flatnonzero(train.info.clusters == group):
      for x, y in zip(*train.client(i), strict=True):
        assert mapping.setdefault(truth[x.tobytes()], y) == y
    maps.append(tuple(mapping[c] for c in range(10)))
  assert maps[0] == tuple(range(10))
  assert len(set(maps)) == 4


def test_unequal_clients_differ_in_size_alone():
  options = {'partition': 'unequal', 'num_clients': 12}
  train, test = data.load('digits', dirichlet_alpha=0.5, seed=3, **options)
  total = sizes(train) + sizes(test)
  assert total.max() > 10 * total.min()
  counts = label_skew.label_counts(train)
  large = counts.sum(axis=1) > 100
  assert large.sum() > 2
  shares = counts[large] / counts[large].sum(axis=1, keepdims=True)
  assert np.abs(shares - 0.1).max() < 0.08
  alike, _ = data.load('digits', dirichlet_alpha=1e9, **options)
  assert np.ptp(sizes(alike)) <= 2
  drawn, _ = data.load('digits', examples_per_client=40, **options)
  assert abs(len(drawn.y) - 12 * 40) <= 12  # A bound on the mean, as with dirichlet.


def test_shards_hold_few_classes():
  train, _ = data.load(
    'digits', partition='shards', num_clients=20, classes_per_client=2
  )
  # A shard may straddle.
  assert max(len(set(train.client(i)[1])) for i in range(20)) <= 4


@pytest.mark.parametrize('alpha', [1e-300, 1e-9, 0.02, 1e300])
def test_dirichlet_never_leaves_a_training_split_empty(alpha):
  train, test = data.load(
    'digits', partition='dirichlet', num_clients=300, dirichlet_alpha=alpha
  )
  total = sizes(train) + sizes(test)
  assert sizes(train).min() >= 1
  assert total.sum() == 1797
  # Each class goes to one client, or to all alike.
  assert (total > 2).sum() <= 10 if alpha < 1e-8 else total.max() < 800
  assert alpha < 1 or total.max() <= 2 * 1797 / 300


def test_rotation_by_other_angles_interpolates():
  x = np.zeros((1, 9, 9), np.uint8)
  x[0, 4, :] = 200
  turned = rotation.rotate(x, 45)
  assert turned.shape == x.shape
  assert turned[0, 2, 6] > 100 or turned[0, 2, 2] > 100
  np.testing.assert_array_equal(rotation.rotate(x, 90), np.rot90(x, 1, axes=(1, 2)))


@pytest.mark.parametrize(
  ('options', 'subject'),
  [
    ({'name': 'svhn'}, '`name=svhn`'),
    ({'partition': 'spiral'}, '^partition: '),
    ({'partition': 'natural'}, 'no natural clients'),
    ({'num_clients': -1}, '`num_clients=-1`'),
    ({'examples_per_client': 2.5}, '`examples_per_client=2.5`'),
    ({'num_clients': 1000}, '`num_clients=1000`'),
    ({'num_clients': 100, 'examples_per_client': 50}, '`num_clients=100`'),
    ({'partition': 'dirichlet', 'num_clients': 900}, '900 clients'),
    ({'partition': 'dirichlet', 'dirichlet_alpha': 0.0}, '`dirichlet_alpha=0.0`'),
    ({'partition': 'rotated', 'num_clients': 3}, '`partition_groups=4`'),
    ({'num_clients': 10**12}, '`num_clients=1000000000000`'),
    ({'classes_per_client': 10**9}, '`classes_per_client=1000000000`'),
    ({'dirichlet_alpha': 1e308}, '`dirichlet_alpha=1e.308`'),
    ({'seed': -1}, '`seed=-1`'),
    ({'dirichlet_alpha': 0.05}, '`dirichlet_alpha=0.05`'),
    ({'partition': 'iid', 'client_rows': [[0, 1]]}, '`client_rows'),
    ({'partition': 'rotated+labels', 'classes_per_client': 3}, '`classes_per_client'),
    ({'partition': 'iid', 'rotations': [0, 90]}, '`rotations'),
    ({'partition': 'rotated', 'drift_rounds': [5, 5]}, '`drift_rounds=5,5`'),
    ({'partition': 'dirichlet', 'drift_rounds': [5]}, '`drift_rounds=5`'),
    ({'partition': 'rotated', 'drift_start': 'one'}, '`drift_start=one`'),
    ({'partition': 'rotated', 'drift_rounds': [5]}, '`drift_rounds=5`'),
  ],
)
def test_impossible_options_are_named(options, subject):
  with pytest.raises(UserError, match=subject):
    data.load(**{'name': 'digits', 'partition': 'iid'} | options)


def test_unseen_clients_are_whole_and_keep_their_ids():
  train, test = data.load('digits', partition='rotated', num_clients=12)
  (seen, seen_test), (unseen, unseen_test) = data.hold_out_clients(train, test, 0.25, 1)
  assert (seen.num_clients, unseen.num_clients) == (9, 3)
  ids = np.concatenate([seen.client_ids, unseen.client_ids])
  np.testing.assert_array_equal(np.sort(ids), np.arange(12))
  for part, whole in ((seen, train), (unseen, train), (unseen_test, test)):
    for i, name in enumerate(part.info.names):
      was = int(np.flatnonzero(whole.info.names == name)[0])
      assert part.client_ids[i] == whole.client_ids[was]
      np.testing.assert_array_equal(part.client(i)[0], whole.client(was)[0])
  np.testing.assert_array_equal(seen.client_ids, seen_test.client_ids)
  (again, _), _ = data.hold_out_clients(train, test, 0.25, 1)
  np.testing.assert_array_equal(seen.client_ids, again.client_ids)
  for fraction in (0.01, 1.0, -1.0, 1e308, np.inf, np.nan):
    with pytest.raises(UserError, match='`fraction='):
      data.hold_out_clients(train, test, fraction)


def test_hold_out_parts_every_clients_training_examples():
  x = np.arange(40, dtype=np.float32).reshape(20, 2)
  train = FederatedData.from_arrays(
    x, np.arange(20) % 3, np.array([10, 1, 9]), client_ids=np.array([7, 3, 5])
  )
  kept, held = data.hold_out(train, seed=1)
  assert kept.sizes().tolist() == [8, 1, 7]
  assert held.sizes().tolist() == [2, 0, 2]
  for i in range(3):
    rows = np.concatenate([kept.client(i)[0], held.client(i)[0]])
    np.testing.assert_array_equal(np.sort(rows, axis=0), train.client(i)[0])
    np.testing.assert_array_equal(kept.client_ids, train.client_ids)
  again, _ = data.hold_out(train, seed=1)
  np.testing.assert_array_equal(again.x, kept.x)
  other, _ = data.hold_out(train, seed=2)
  assert not np.array_equal(other.x, kept.x)


def test_bad_clients_stay_bad_where_examples_are_held_out():
  train, _ = data.load('digits', num_clients=8)
  bad = attacks.apply(train, 'label_flip+sign_flip', 0.25)
  kept, held = data.hold_out(bad)
  assert kept.attack is bad.attack
  assert held.attack is None


def test_a_servers_test_set_is_balanced():
  _, test = data.load('digits', partition='shards', num_clients=10)
  x, y = data.server_test(test, 20)
  assert np.bincount(y).tolist() == [20] * 10
  known = {row.tobytes(): label for row, label in zip(test.x, test.y, strict=True)}
  assert all(known[row.tobytes()] == label for row, label in zip(x, y, strict=True))
  assert len({row.tobytes() for row in x}) == 200
  np.testing.assert_array_equal(data.server_test(test, 20)[0], x)
  assert (data.server_test(test, 20, seed=1)[0] != x).any()
  fewest = np.bincount(test.y).min()
  with pytest.raises(UserError, match=rf'class \d has {fewest}; lower it'):
    data.server_test(test, fewest + 1)
  _, numbers = data.load('diabetes', num_clients=4)
  with pytest.raises(UserError, match=r'`server_test` balances .* are for regression'):
    data.server_test(numbers, 1)


def test_a_cap_on_examples_draws_at_random(tmp_path):
  y = np.repeat(np.arange(4), 10)
  split = np.tile([0] * 9 + [1], 4)
  x = np.zeros((40, 2), np.float32)
  np.savez(tmp_path / 'a.npz', x=x, y=y, client=np.zeros(40), split=split)
  train, _ = data.load(f'npz:{tmp_path}/a.npz', examples_per_client=12)
  assert len(train.y) == 12
  assert len(np.unique(train.y)) == 4


def test_only_square_images_are_rotated(tmp_path):
  x = np.zeros((12, 8, 6), np.uint8)
  np.savez(tmp_path / 'a.npz', **own_arrays(x=x))
  with pytest.raises(UserError, match=r'needs square images; those of .* are 8 by 6'):
    data.load(f'npz:{tmp_path}/a.npz', partition='rotated', num_clients=4)


def test_label_skew_of_known_mixtures():
  assert label_skew.label_skew(np.array([[5, 5], [9, 9], [0, 0]])) == 0
  assert label_skew.label_skew(np.array([[8, 0], [0, 8]])) == pytest.approx(0.5)
  assert label_skew.label_skew(10 * np.eye(10)) == pytest.approx(0.9)
  with np.errstate(all='raise'):
    assert np.isnan(label_skew.label_skew(np.zeros((3, 2), int)))
  train, _ = data.load('digits', partition='shards', num_clients=20)
  counts = label_skew.label_counts(train)
  for i in (0, 7):
    want = np.bincount(train.client(i)[1], minlength=10)
    np.testing.assert_array_equal(counts[i], want)


def test_groups_change_at_the_drift_rounds_and_examples_stay():
  options = {'num_clients': 12, 'seed': 3}
  first, *later = data.load_phases(
    'digits', partition='label_swapped', drift_rounds=[5, 9], **options
  )
  assert [first.first_round, *(p.first_round for p in later)] == [1, 5, 9]
  plain = data.load('digits', partition='label_swapped', **options)
  for split, want in zip(first[1:], plain, strict=True):
    np.testing.assert_array_equal(split.y, want.y)
  groups = [np.asarray(p.train.info.clusters) for p in (first, *later)]
  np.testing.assert_array_equal(groups[0], np.arange(12) % 4)
  assert not np.array_equal(groups[0], groups[1])
  assert not np.array_equal(groups[1], groups[2])
  for phase in later:
    for split, before in zip(phase[1:], first[1:], strict=True):
      np.testing.assert_array_equal(split.x, before.x)
      np.testing.assert_array_equal(split.offsets, before.offsets)
      changed = np.asarray(split.y) != np.asarray(before.y)
      rows = np.repeat(np.asarray(split.info.clusters), np.diff(split.offsets))
      old = np.repeat(np.asarray(before.info.clusters), np.diff(split.offsets))
      assert changed.any()
      assert not changed[rows == old].any()
  # FedDrift's begin: one group, and the same groups after it.
  one, *rest = data.load_phases(
    'digits', partition='label_swapped', drift_rounds=['5', '9'], drift_start='one',
    **options,
  )  # fmt: skip
  assert set(one.train.info.clusters) == {0}
  np.testing.assert_array_equal(rest[0].train.y, later[0].train.y)
  told = data.phases_with_true_groups([one, *rest])
  assert {p.train.groups.count for p in told} == {4}
