"""Every partition deals each example once, and as its paper says."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fesem_jax import data, partitions
from fesem_jax.data.partitions.grouped import rotate
from fesem_jax.data.partitions.partition import Request, by_shares, split_each
from fesem_jax.evaluation import label_skew
from fesem_jax.utils.errors import UserError

DEALT = (
  'iid', 'unequal', 'lognormal', 'dirichlet', 'dirichlet_labels',
  'labels(per_client=3)', 'power_law(sigma=0.5)', 'shards',
)  # fmt: skip
GROUPS = ('rotated(2)', 'label_permuted(2)', 'label_swapped(2)', 'corrupted(2)')


def numbers(count=2000, classes=10, test=0, **columns):
  """A pool whose only feature is the row number."""
  rng = np.random.default_rng(0)
  if test:
    columns['split'] = np.repeat([0, 1], [count - test, test])
  y = rng.integers(0, classes, count)
  x = np.arange(count, dtype=np.float32)[:, None]
  return data.from_arrays(x, y, num_classes=classes, **columns)


def images(count=160):
  """Gray images of random pixels, whose first two say the row and never turn."""
  rng = np.random.default_rng(1)
  x = rng.integers(1, 256, (count, 6, 6)).astype(np.uint8)
  return data.from_arrays(x, np.arange(count) % 10)


def rows_of(split):
  """The rows of each client, of `numbers`."""
  return [split.client(i)[0][:, 0].astype(int) for i in range(split.num_clients)]


def sizes(split):
  return np.asarray(split.sizes())


def federate(partition, pool=None, num_clients=0, **options):
  pool = numbers() if pool is None else pool
  return data.federate(pool, partition, num_clients=num_clients, **options)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
  st.sampled_from([*DEALT, *GROUPS, 'noisy']), st.sampled_from([*DEALT[:5], '']),
  st.integers(2, 12), st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_examples_are_dealt_once_by_seed(outer, inner, num_clients, seed, last):
  joined = f'{outer}+{inner}' if inner and outer not in DEALT else outer
  pool = images()
  options = {'num_clients': num_clients, 'seed': seed}
  options['test_rows'] = 'last' if last else 'random'
  (train, test), (again, _) = (data.federate(pool, joined, **options) for _ in range(2))
  np.testing.assert_array_equal(train.x, again.x)
  copies = 2 if outer in GROUPS else 1
  total = sizes(train) + sizes(test)
  assert sizes(train).min() >= 1
  assert total.sum() <= copies * len(pool.y)
  if not outer.startswith(('labels', 'power_law')):  # Labels may have no client.
    assert total.sum() == copies * len(pool.y)
  cut = np.maximum(1, np.minimum(np.round(0.8 * total), total - 1))
  np.testing.assert_array_equal(sizes(train), cut)
  groups = train.info.clusters
  assert (groups is None) == (copies == 1)
  if copies == 1 and outer != 'noisy':
    originals = {x.tobytes(): y for x, y in zip(pool.x, pool.y, strict=True)}
    for split in (train, test):
      for x, y in zip(split.x, split.y, strict=True):
        assert originals[x.tobytes()] == y


@pytest.mark.parametrize('inner', DEALT)
def test_expressions_are_values(inner):
  for outer in (*GROUPS, 'noisy', 'cluster'):
    value = partitions.parse(f'{outer}+{inner}')
    assert partitions.parse(f'{inner}+{outer}') == value == partitions.parse(str(value))
    assert hash(value) == hash(partitions.parse(str(value)))
  three = partitions.parse(f'{inner}+rotated(groups=[0,30])+noisy(0.2)')
  assert [type(part).__name__ for part in three.parts[:2]] == ['Noisy', 'Rotated']


class EveryOther(partitions.Partition):
  """A user's kind: client i has rows i, i + M, ... of some of all examples."""

  of: int = 1

  def deal(self, rng, labels, num_clients):
    return [
      np.arange(i, len(labels) // self.of, num_clients) for i in range(num_clients)
    ]


def test_a_users_kind_deals_both_splits():
  train, test = federate(EveryOther(), numbers(2000, 4, test=500), num_clients=3)
  assert rows_of(train)[1].tolist() == list(range(1, 1500, 3))
  share, of_test = (data.label_counts(split) for split in (train, test))
  assert np.abs(share / share.sum(0) - of_test / of_test.sum(0)).max() < 0.02
  inside = partitions.LabelSwapped(2, within=EveryOther(2))
  grouped, _ = federate(inside, num_clients=4)
  assert grouped.info.clusters.tolist() == [0, 1] * 2
  assert sizes(grouped).sum() == 1600


def test_sizes_and_labels_of_clients_may_be_listed():
  listed = [10, 1500, 7, 2]
  train, test = federate(partitions.Iid(sizes=listed), numbers(3000, test=500))
  assert sizes(train).tolist() == listed
  assert sizes(test).sum() == 500
  train, _ = federate(f'iid(sizes={listed})', numbers(3000))
  assert sizes(train).tolist() == listed
  of = [[0, 1], [2], [3, 4, 5]]
  train, test = federate(partitions.Labels(of=of), numbers(test=500))
  for split in (train, test):
    assert [sorted(set(split.client(i)[1].tolist())) for i in range(3)] == of
  grouped, _ = federate('rotated(2)+labels(of=[[0,1],[2]])', images())
  assert grouped.num_clients == 4
  assert set(grouped.client(2)[1].tolist()) == {2}


@pytest.mark.parametrize('per_client', [1, 3, 10])
def test_labels_are_dealt_as_in_niid_bench(per_client):
  pool = numbers(2500, test=500)
  train, test = federate(partitions.Labels(per_client), pool, 25)
  counts, of_test = (data.label_counts(split) for split in (train, test))
  has = counts > 0
  assert (has.sum(axis=1) == per_client).all()
  assert has[np.arange(25), np.arange(25) % 10].all()
  for label, of_split in itertools.product(range(10), (counts, of_test)):
    assert np.ptp(of_split[has[:, label], label]) <= 1  # Equally among its clients,
    assert not of_split[~has[:, label], label].any()  # and nobody else.
  if per_client == 3:  # The others are drawn: not the next ones.
    assert not has[np.arange(25), (np.arange(25) + 1) % 10].all()


def test_capped_dirichlet_follows_niid_bench():
  labels = numbers().y
  request = Request(np.random.default_rng(5), labels, 20, 10)
  result = partitions.Dirichlet(0.3, min_examples=30).shares(request, np.zeros(0))
  again = np.random.default_rng(5)
  counts = np.bincount(labels, minlength=10)
  while True:  # The same from the words of the paper's code.
    sizes_values, want = np.zeros(20), np.zeros((10, 20))
    for label in range(10):
      p = again.dirichlet(np.repeat(0.3, 20))
      p = np.array([v * (n < 2000 / 20) for v, n in zip(p, sizes_values, strict=True)])
      if p.sum() == 0:
        break
      want[label] = p / p.sum()
      ends = np.round(np.cumsum(want[label]) * counts[label]).astype(int)
      sizes_values += np.diff(ends, prepend=0)
    else:
      if sizes_values.min() >= 30:
        break
  np.testing.assert_allclose(result, want)


def test_lognormal_sizes_have_their_deviation_and_iid_labels():
  train, test = federate('lognormal(0.5)', numbers(44_000, test=4000), 400)
  assert abs(np.log(sizes(train)).std() - 0.5) < 0.06
  assert np.abs(sizes(train) / 10 - sizes(test)).max() <= 1.1
  assert label_skew.label_skew(data.label_counts(train)) < 0.15


def test_power_law_is_that_of_fedprox():
  train, _ = federate('power_law', numbers(9900, test=900), 100)
  counts = data.label_counts(train)
  for i in range(100):
    assert set(np.flatnonzero(counts[i])) == {i % 10, (i + 1) % 10}
  assert counts[counts > 0].min() >= 4  # 5, but for rounding.
  assert counts.sum() == 9000
  total = counts.sum(axis=1)
  assert total.max() > 10 * np.median(total)


def test_labels_are_dealt_in_equal_sizes_as_hsu_et_al_do():
  skews = []
  for alpha in (0.1, 1.0, 10.0, 1e4):
    partition = partitions.DirichletLabels(alpha)
    train, test = federate(partition, numbers(2500, test=500), 20)
    assert (sizes(train) == 100).all()
    assert (sizes(test) == 25).all()
    for split in (train, test):  # Every example is dealt once.
      assert len(set(split.x.ravel().tolist())) == len(split.y) == sizes(split).sum()
    skews.append(label_skew.label_skew(data.label_counts(train)))
  assert sorted(skews, reverse=True) == skews
  assert skews[0] > 0.7
  assert skews[-1] < 0.15


def test_clients_take_their_least_examples_from_the_largest():
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 4, 500)
  of_classes = rng.dirichlet(np.full(120, 0.1), 4)
  dealt = by_shares(np.random.default_rng(1), labels, of_classes, 3)
  left = by_shares(np.random.default_rng(1), labels, of_classes, 0)
  for i in range(len(left)):  # The largest client is looked for each time.
    while len(left[i]) < 3:
      largest = int(np.argmax([len(rows) for rows in left]))
      need = min(3 - len(left[i]), len(left[largest]) - 3)
      left[i] = np.concatenate([left[i], left[largest][:need]])
      left[largest] = left[largest][need:]
  for rows, expected in zip(dealt, left, strict=True):
    np.testing.assert_array_equal(rows, expected)


def test_examples_stay_in_their_cluster():
  cluster = np.random.default_rng(0).permutation(np.repeat(['art', 'real'], 240))
  for split in (None, np.arange(480) // 5 % 2):
    pool = data.from_arrays(
      np.arange(480.0)[:, None], np.arange(480) % 5, cluster=cluster, split=split
    )
    for partition in ('', *(f'cluster+{inner}' for inner in DEALT)):
      train, test = federate(partition, pool, 6)
      assert train.info.clusters.tolist() == [0, 1] * 3
      assert train.info.cluster_names == ('art', 'real')
      for part, i in itertools.product((train, test), range(6)):
        assert set(cluster[rows_of(part)[i]]) <= {('art', 'real')[i % 2]}


def test_labels_change_among_those_that_occur():
  y = np.repeat([1, 2, 5], 40)  # From 1, and with a gap.
  pool = data.from_arrays(np.arange(120.0)[:, None], y)
  train, _ = federate('label_permuted(6)', pool, 6)
  tables = set()
  for i in range(6):
    x, labels = train.client(i)
    pairs = {(y[int(row[0])], label) for row, label in zip(x, labels, strict=True)}
    assert len(pairs) == 3
    tables.add(tuple(label for _, label in sorted(pairs)))
  assert tables == set(itertools.permutations([1, 2, 5]))


def test_swapped_labels_are_swapped_back():
  pool = numbers()
  for groups, pairs in ((3, [(), (1, 2), (3, 4)]), ([(7, 1)], [(), (7, 1)])):
    train, _ = federate(partitions.LabelSwapped(groups), pool, 6)
    for i, rows in enumerate(rows_of(train)):
      pair = pairs[i % len(pairs)]
      back = dict(zip(pair, pair[::-1], strict=True))
      expected = [back.get(y, y) for y in pool.y[rows].tolist()]
      assert train.client(i)[1].tolist() == expected


@pytest.mark.parametrize('degrees', [15, 105, -40.5])
def test_nearest_sampling_takes_the_nearest_pixel(degrees):
  x = np.random.default_rng(0).integers(1, 256, (2, 28, 28)).astype(np.uint8)
  actual = rotate(x, degrees, 'nearest')
  angle, middle = np.deg2rad(degrees), 13.5
  row, column = np.mgrid[:28, :28] - middle
  # Where the pixel was, before the image was turned counterclockwise.
  old_row = np.cos(angle) * row + np.sin(angle) * column + middle
  old_column = -np.sin(angle) * row + np.cos(angle) * column + middle
  nearest = [np.rint(old).astype(int) for old in (old_row, old_column)]
  inside = np.all([(n >= 0) & (n < 28) for n in nearest], axis=0)
  expected = np.where(inside, x[:, nearest[0].clip(0, 27), nearest[1].clip(0, 27)], 0)
  assert (actual == expected).mean() > 0.998  # But for ties.
  np.testing.assert_array_equal(rotate(x, 270), np.rot90(x, 3, axes=(1, 2)))


def test_test_rows_may_be_the_last_of_each_client():
  client = np.arange(100) % 7
  pool = numbers(100, client=client)
  train, test = federate('natural', pool, test_rows='last')
  fit, validation = data.hold_out(train)
  for i in range(7):
    rows = np.flatnonzero(client == i)
    parts = [rows_of(split)[i] for split in (fit, validation, test)]
    assert np.concatenate(parts).tolist() == rows.tolist()
    assert [len(part) for part in parts] == ([10, 2, 3] if i < 2 else [9, 2, 3])
  one, other = split_each(np.random.default_rng(0), [np.arange(2), np.arange(3)], True)
  assert [rows.tolist() for rows in (*one, *other)] == [[0], [0, 1], [1], [2]]
  dealt, tested = federate('dirichlet', pool, 5, test_rows='last')
  for i in range(5):
    assert rows_of(dealt)[i].max() < rows_of(tested)[i].min()
  few, _ = federate('natural', pool, test_rows='last', examples_per_client=3)
  assert rows_of(few)[0].tolist() == rows_of(train)[0].tolist()[-3:]


REFUSED = [
  (lambda: partitions.parse('spiral'), 'partition: '),
  (lambda: partitions.parse('dirichlet(beta=1)'), 'partition: '),
  (lambda: partitions.parse('rotated+label_permuted'), 'partition: '),
  (lambda: partitions.parse('natural+iid'), 'partition: '),
  (lambda: partitions.Rotated(within=partitions.Noisy()), 'partition: '),
  (lambda: partitions.Dirichlet(alpha=float('nan')), 'alpha: '),
  (lambda: partitions.Iid(sizes=[3, 0]), 'sizes: '),
  (lambda: partitions.Rotated(2.5), 'groups: '),
  (lambda: partitions.Rotated([0, 0]), 'groups: '),
  (lambda: partitions.Rotated(['x']), 'groups: '),
  (lambda: partitions.Rotated(sampling='cubic'), 'sampling: '),
  (lambda: federate('label_swapped([[1,1]])'), 'groups: '),
  (lambda: federate('corrupted([fog])', images(), 4), 'groups: '),
  (lambda: partitions.Corrupted(13), 'groups: '),
  (lambda: federate('natural'), 'partition: '),
  (lambda: federate('cluster'), 'partition: '),
  (lambda: federate('rotated'), 'partition: '),
  (lambda: federate('corrupted'), 'partition: '),
  (lambda: federate(3), 'partition: '),
  (lambda: federate('iid', num_clients=1001), 'num_clients: '),
  (lambda: federate('iid', num_clients=100, examples_per_client=50), 'num_clients: '),
  (lambda: federate('iid', examples_per_client=2.5), 'examples_per_client: '),
  (lambda: federate('iid(sizes=[2000])'), 'sizes: '),
  (lambda: federate('iid(sizes=[9,9])', num_clients=3), 'num_clients: '),
  (lambda: federate('labels(of=[[0],[11]])'), 'of: '),
  (lambda: federate('labels(11)'), 'per_client: '),
  (lambda: federate('dirichlet(min_examples=101)', num_clients=20), 'min_examples: '),
  (lambda: federate('label_swapped(3)', num_clients=2), 'num_clients: '),
  (lambda: federate('label_swapped(6)', num_clients=6), 'groups: '),
  (lambda: federate('rotated', data.from_arrays(np.ones((400, 3, 5)), np.ones(400)), 9),
   'partition: rotated needs square'),
  (lambda: federate('dirichlet', data.from_arrays(np.ones((40, 3)), np.ones(40),
   task='regression')), 'partition: '),
  (lambda: federate('iid', numbers(test=9), test_rows='last'), 'test_rows: '),
  (lambda: federate('natural', numbers(3, client=['a', 'a', 'b'])), 'client '),
]  # fmt: skip


@pytest.mark.parametrize(('call', 'subject'), REFUSED)
def test_refusals_name_their_subject(call, subject):
  with pytest.raises(UserError, match=f'^{subject}') as error:
    call()
  assert len(str(error.value)) <= 100 or 'expected' in str(error.value)
