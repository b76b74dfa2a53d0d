"""Clients of a pool, and parts of a federation that are set aside."""

import json
import pickle
import types

import numpy as np
import pytest

from fesem_jax import data, partitions
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import attacks
from fesem_jax.data.partitions.listed import read_rows
from fesem_jax.evaluation import label_skew
from fesem_jax.utils.errors import UserError


def twelve(split=None, **columns):
  """Twelve examples, number i in row i."""
  x = np.arange(12.0)[:, None]
  return data.from_arrays(x, np.arange(12) % 3, split=split, **columns)


def numbers(split):
  return [
    split.client(i)[0][:, 0].astype(int).tolist() for i in range(split.num_clients)
  ]


def deal(rows, split=None, **options):
  return data.federate(twelve(split), partitions.Rows(rows), **options)


def test_listed_rows_are_dealt_in_their_order():
  rows = [{'train': [5, 3], 'test': [0]}, {'train': [9], 'test': []}]
  train, test = deal(rows)
  assert (numbers(train), numbers(test)) == ([[5, 3], [9]], [[0], []])
  assert train.info.names.tolist() == ['client0', 'client1']
  apart, _ = deal({'north': rows[0], 'south': rows[1]})
  assert apart.info.names.tolist() == ['north', 'south']
  listed = [11, 9, 7, 5, 3, 1, 0, 2, 4, 6]
  (train, test), (again, _), (other, _) = (deal([listed], seed=s) for s in (0, 0, 1))
  for split in (train, test):
    (dealt,) = numbers(split)
    assert dealt == [row for row in listed if row in dealt]
  assert sorted(numbers(train)[0] + numbers(test)[0]) == sorted(listed)
  assert numbers(train) == numbers(again) != numbers(other)
  last, tested = deal([listed], test_rows='last')
  assert (numbers(last), numbers(tested)) == ([listed[:8]], [listed[8:]])


def test_listed_rows_keep_the_test_split_of_the_data():
  split = [0] * 6 + [1] * 6
  train, test = deal([[2, 1, 7], [3, 6]], split)
  assert (numbers(train), numbers(test)) == ([[2, 1], [3]], [[7], [6]])
  mixed = [{'train': [0, 11], 'test': [6]}, {'train': [8], 'test': [1]}]  # FL-bench's.
  train, test = deal(mixed, split)
  assert (numbers(train), numbers(test)) == ([[0, 11], [8]], [[6], [1]])
  y, x = np.tile(np.repeat([0, 1], 20), 2), np.zeros((80, 1))
  pool = data.from_arrays(x, y, split=np.repeat([0, 1], 40))
  rows = [[*range(15), 20], [*range(15, 20)], [*range(21, 40)]]
  _, test = data.federate(pool, partitions.Rows(rows))
  counts = [np.bincount(test.client(i)[1], minlength=2).tolist() for i in range(3)]
  assert counts == [[15, 1], [5, 0], [0, 19]]  # As the classes for training.


FILES = {
  'list.json': (json.dumps([[3, 1, 4], [0, 2]]), None),
  'names.json': (json.dumps({'a': [3, 1, 4], 'b': [0, 2]}), ['a', 'b']),
  'net_dataidx_map.txt': ('{\n0: [\n3, 1, 4\n]\n1: [\n0, 2\n]\n}\n', ['0', '1']),
  'scale.csv': ('client_id,sample_path\nb,x\na,x\nb,x\na,x\na,x\n', ['b', 'a']),
}


@pytest.mark.parametrize('name', FILES)
def test_rows_of_files_of_other_frameworks(tmp_path, name):
  text, names = FILES[name]
  (tmp_path / name).write_text(text)
  result, train, test = read_rows(tmp_path / name)
  expected = [[0, 2], [1, 3, 4]] if name.endswith('.csv') else [[3, 1, 4], [0, 2]]
  assert [rows.tolist() for rows in train] == expected
  assert (result, test) == (names, None)
  train, test = data.federate(twelve(), f'rows({tmp_path / name})')
  assert sorted(np.concatenate([train.x, test.x])[:, 0]) == [0, 1, 2, 3, 4]


def test_rows_of_fl_bench_and_flower(tmp_path):
  rows = [
    {'train': np.array([3, 1], np.int32), 'val': np.array([8]), 'test': np.array([4])},
    {'train': np.array([0]), 'val': np.array([]), 'test': np.array([])},
  ]
  content = {'separation': {'train': [0, 1], 'total': 2}, 'data_indices': rows}
  (tmp_path / 'partition.pkl').write_bytes(pickle.dumps(content))
  train, test = deal(tmp_path / 'partition.pkl')
  assert (numbers(train), numbers(test)) == ([[3, 1], [0]], [[4], []])
  parts = [{'row': np.array([3, 1, 4])}, {'row': np.array([0])}]  # Of flwr-datasets.
  dealt = types.SimpleNamespace(num_partitions=2, load_partition=parts.__getitem__)
  assert [rows.tolist() for rows in read_rows(dealt)[1]] == [[3, 1, 4], [0]]


def drift(partition, rounds, start='groups'):
  return data.drift(twelve(), partition, rounds, start, num_clients=2)


REFUSED = [
  (lambda: deal('absent.json'), r'absent\.json'),
  (lambda: deal([[0, 1], [1, 2]]), 'rows: row 1'),
  (lambda: deal([{'train': [0], 'test': [0]}]), 'rows: row 0'),
  (lambda: deal([[0, 1], []]), 'rows: a client'),
  (lambda: deal([[0, -1]]), 'rows: .0'),
  (lambda: deal([[0, 1.5]]), 'rows: .0'),
  (lambda: deal([[0, 12]]), 'rows: no row 12'),
  (lambda: deal([{'train': [0], 'test': []}]), 'rows: there are no test'),
  (lambda: deal({'train': [0, 1], 'test': [2]}), 'rows: has splits'),
  (lambda: deal([]), 'rows: there are no clients'),
  (lambda: drift('iid', [5]), 'drift_rounds: iid'),
  (lambda: drift('label_swapped(2)', [5, 5]), 'drift_rounds: must rise'),
  (lambda: drift('label_swapped(2)', [1]), 'drift_rounds: must rise'),
  (lambda: drift('label_swapped(2)', [2.5]), 'drift_rounds: must rise'),
  (lambda: drift('label_swapped(2)', [5], 'two'), 'drift_start: '),
  (lambda: data.load('digits', standardize=True), 'standardize: '),
]


@pytest.mark.parametrize(('call', 'subject'), REFUSED)
def test_refusals_name_their_subject(call, subject):
  with pytest.raises(UserError, match=f'^{subject}'):
    call()


def test_a_cap_on_examples_draws_at_random():
  y, split = np.repeat(np.arange(4), 10), np.tile([0] * 9 + [1], 4)
  pool = data.from_arrays(np.zeros((40, 2)), y, client=np.zeros(40), split=split)
  train, test = data.federate(pool, examples_per_client=12)
  assert (len(train.y), len(test.y)) == (12, 4)
  assert len(np.unique(train.y)) == 4


def test_columns_are_standardized_before_noise():
  rng = np.random.default_rng(3)
  x = np.hstack(
    [rng.normal([50, 1], [30, 0.01], (4000, 2)), rng.integers(0, 2, (4000, 1))]
  )
  pool = data.from_arrays(x, np.arange(4000) % 3)
  plain, noisy = (
    data.federate(pool, p, num_clients=4, standardize=True)
    for p in ('iid', 'noisy(0.5)')
  )
  train, test = plain
  np.testing.assert_allclose(train.x[:, :2].mean(axis=0), 0, atol=1e-4)
  np.testing.assert_allclose(train.x[:, :2].std(axis=0), 1, rtol=1e-4)
  assert set(np.unique(test.x[:, 2])) == {0, 1}
  assert train.info.standardization is not None
  for before, after in zip(plain, noisy, strict=True):
    for i in range(4):
      added = after.client(i)[0] - before.client(i)[0]
      np.testing.assert_allclose(added.var(axis=0), 0.5 * (i + 1) / 4, rtol=0.25)


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
  for fraction in (0.01, 1.0, -1.0, np.inf, np.nan):
    with pytest.raises(UserError, match='fraction: '):
      data.hold_out_clients(train, test, fraction)


def test_hold_out_parts_every_clients_training_examples():
  x = np.arange(40, dtype=np.float32).reshape(20, 2)
  train = FederatedData.from_arrays(
    x, np.arange(20) % 3, np.array([10, 1, 9]), client_ids=np.array([7, 3, 5])
  )
  kept, validation = data.hold_out(train, seed=1)
  assert kept.sizes().tolist() == [8, 1, 7]
  assert validation.sizes().tolist() == [2, 0, 2]
  for i in range(3):
    rows = np.concatenate([kept.client(i)[0], validation.client(i)[0]])
    np.testing.assert_array_equal(np.sort(rows, axis=0), train.client(i)[0])
    np.testing.assert_array_equal(kept.client_ids, train.client_ids)
  other, _ = data.hold_out(train, seed=2)
  assert not np.array_equal(other.x, kept.x)


def test_bad_clients_stay_bad_where_examples_are_held_out():
  train, _ = data.load('digits', num_clients=8)
  bad = attacks.apply(train, 'label_flip+sign_flip', 0.25)
  kept, validation = data.hold_out(bad)
  assert kept.attack is bad.attack
  assert validation.attack is None


def test_label_skew_of_known_mixtures():
  assert label_skew.label_skew(np.array([[5, 5], [9, 9], [0, 0]])) == 0
  assert label_skew.label_skew(np.array([[8, 0], [0, 8]])) == pytest.approx(0.5)
  assert label_skew.label_skew(10 * np.eye(10)) == pytest.approx(0.9)
  with np.errstate(all='raise'):
    assert np.isnan(label_skew.label_skew(np.zeros((3, 2), int)))
  train, _ = data.load('digits', partition='shards', num_clients=20)
  counts = data.label_counts(train)
  for i in (0, 7):
    expected = np.bincount(train.client(i)[1], minlength=10)
    np.testing.assert_array_equal(counts[i], expected)


def test_groups_change_at_the_drift_rounds_and_examples_stay():
  options = {'partition': 'label_swapped', 'num_clients': 12, 'seed': 3}
  first, *later = data.load_phases('digits', drift_rounds=[5, 9], **options)
  assert [first.first_round, *(p.first_round for p in later)] == [1, 5, 9]
  plain = data.load('digits', **options)
  for split, expected in zip(first[1:], plain, strict=True):
    np.testing.assert_array_equal(split.y, expected.y)
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
  drift = {'drift_rounds': [5, 9], 'drift_start': 'one'}
  one, *rest = data.load_phases('digits', **drift, **options)
  assert set(one.train.info.clusters) == {0}
  np.testing.assert_array_equal(rest[0].train.y, later[0].train.y)
  phases = data.phases_with_true_groups([one, *rest])
  assert {p.train.groups.count for p in phases} == {4}
