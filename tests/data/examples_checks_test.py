"""What about examples may make results other than they seem is said once."""

import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.data import examples_checks
from fesem_jax.utils.errors import UserError
from tests.support.commands import call

RNG = np.random.default_rng(0)


def arrays(x, y=None, **others):
  count = len(x)
  y = np.arange(count) % 2 if y is None else y
  return {'x': x, 'y': y, 'client': np.arange(count) % 4} | others


def copied(x, copies, seed=1):
  """A training split, and a test split of which some rows are copies of it."""
  rng = np.random.default_rng(seed)
  test = rng.random(x.shape).astype(x.dtype)
  test[:copies] = x[:copies]
  y = np.arange(len(x)) % 2
  return arrays(np.r_[x, test], np.r_[y, y], split=np.repeat([0, 1], len(x)))


@pytest.mark.parametrize('dtype', ['f4', 'f8'])
def test_test_examples_that_are_training_examples_are_counted(caplog, dtype):
  x = RNG.random((400, 5)).astype(dtype)
  for copies in (0, 3, 4, 400):
    caplog.clear()
    train, test = data.load('mine', arrays=copied(x, copies))
    found = examples_checks.repeated(train, test)
    assert len(found.in_both) == copies
    np.testing.assert_array_equal(
      np.sort(test.x[found.in_both], axis=0), np.sort(x[:copies].astype('f4'), axis=0)
    )
    assert (found.test, found.inside) == (400, 0)
    wanted = f'mine: {copies} of 400 test examples ({copies / 4:.3g} %) are also train'
    assert [m[: len(wanted)] for m in caplog.messages] == [wanted] * (copies >= 4)


def test_other_targets_are_other_examples():
  x = RNG.random((40, 5)).astype('f4')
  y = np.r_[np.zeros(40, int), np.ones(40, int)]
  both = data.load('mine', arrays=arrays(np.r_[x, x], y, split=np.repeat([0, 1], 40)))
  assert not len(examples_checks.repeated(*both).in_both)


@pytest.mark.parametrize('stride', [1, 5, 20])
def test_windows_that_overlap_with_trained_ones_are_told_of(caplog, stride):
  text = RNG.integers(0, 9, 1000)
  windows = np.lib.stride_tricks.sliding_window_view(text, 21)[::stride]
  own = {'x': windows[:, :-1].astype(np.float32), 'y': windows[:, 1:]}
  own |= {'client': np.zeros(len(windows), int), 'scale': 1, 'num_classes': 9}
  train, _ = data.load('mine', arrays=own, task='sequence')
  data.hold_out(train)
  said = [r.message for r in caplog.records if 'sequences overlap' in r.message]
  assert [text.partition(':')[0] for text in said] == (
    ['mine, test split', 'The validation examples'] if stride < 10 else []
  )


def test_tables_of_few_values_have_equal_rows_by_chance(caplog):
  grades = RNG.integers(0, 3, (600, 4))
  train, test = data.load('mine', arrays=arrays(grades))
  found = examples_checks.repeated(train, test)
  assert len(found.in_both) > 0.8 * found.test
  assert found.inside > 0.8
  hot = np.eye(30)[RNG.integers(0, 30, 600)]
  data.load('mine', arrays=arrays(hot))
  assert not caplog.messages


def test_a_pair_of_equal_rows_of_a_small_table_is_no_matter(caplog):
  x = RNG.random((60, 4))
  for copies in (2, 3):
    data.load('mine', arrays=copied(x, copies))
    assert len(caplog.messages) == (copies == 3)


def test_tables_that_are_oversampled_have_copies(caplog):
  table = np.round(RNG.normal(size=(100, 3)), 3)  # Few columns of many values.
  rows = RNG.integers(0, 100, 400)
  own = arrays(table[rows], rows % 2, client=rows % 4)
  train, test = data.load('mine', arrays=own)
  found = examples_checks.repeated(train, test)
  assert len(found.in_both) < 2 * found.inside * found.test
  (said,) = caplog.messages
  assert 'are also training examples; results on them do not show learning' in said


def test_images_that_occur_twice_are_copies(caplog):
  images = np.repeat(RNG.random((100, 6, 6)), 2, axis=0)
  order = RNG.permutation(200)
  data.load('mine', arrays=arrays(images[order], (np.arange(200) // 2 % 2)[order]))
  (said,) = caplog.messages
  assert 'are also training examples; results on them do not show learning' in said


def test_groups_that_share_examples_are_told_of(caplog):
  data.load('digits', partition='label_swapped', num_clients=8, disjoint_groups=True)
  assert not caplog.messages
  data.load('digits', partition='label_swapped', num_clients=8)
  (said,) = caplog.messages
  assert said.endswith('Groups share all examples; `disjoint_groups` divides them.')


def test_many_classes_of_few_examples_are_told_of(caplog):
  x = RNG.random((60, 3))
  data.load('mine', arrays=arrays(x, np.arange(60) % 20))
  assert not caplog.messages
  data.load('mine', arrays=arrays(x, np.arange(60) % 29 * 7, num_classes=197))
  (said,) = caplog.messages
  assert said.startswith('mine: 29 classes occur in 60 training examples.')
  data.load('mine', arrays=arrays(x, np.arange(60) % 29 / 7), task='regression')
  assert len(caplog.messages) == 1


def test_groups_that_replace_known_clusters_are_told_of(caplog):
  own = arrays(RNG.random((40, 3)), client=np.arange(40) // 5)
  own['cluster'] = own['client'] % 2
  options = {'partition': 'label_permuted', 'num_clients': 4, 'partition_groups': 2}
  train, _ = data.load('mine', arrays=own, disjoint_groups=True, **options)
  assert train.info.clusters.tolist() == [0, 1, 0, 1]
  (said,) = caplog.messages
  assert (
    said == 'partition=label_permuted replaces the known clusters by its own groups.'
  )


@pytest.mark.parametrize('shape', [(3, 16, 16), (1, 9, 9), (4, 9, 9), (2, 16, 40)])
@pytest.mark.parametrize('split', [{}, {'split': np.arange(40) // 4 % 2}])
def test_channels_that_come_first_are_moved_to_the_last_axis(caplog, shape, split):
  rng = np.random.default_rng(0)
  x = rng.integers(0, 256, (40, *shape)).astype(np.uint8)
  wanted = np.moveaxis(x, 1, -1)
  wanted = wanted[..., 0] if shape[0] == 1 else wanted
  moved, given = (
    data.load('mine', arrays=arrays(images, **split)) for images in (x, wanted)
  )
  for a, b in zip(moved, given, strict=True):
    np.testing.assert_array_equal(a.x, b.x)
    assert (a.x.flags.c_contiguous, a.scale) == (True, 1 / 255)
  (said,) = caplog.messages
  assert said == (
    f'mine: images of shape {shape} have their channels first, as PyTorch has them; '
    f'they are moved to the last axis: {wanted.shape[1:]}.'
  )


def test_known_clusters_stay_where_clients_are_of_one(caplog):
  cluster = np.repeat(['art', 'clip', 'real'], 100)
  x = np.arange(300.0)[:, None] / 300
  own = arrays(x, np.repeat(np.arange(3), 100), client=cluster, cluster=cluster)
  train, test = data.load(
    'mine', arrays=own, partition='labels', labels_per_client=1, num_clients=6
  )
  assert not caplog.messages
  assert train.info.clusters.tolist() == ['art', 'clip', 'real'] * 2
  assert test.info.clusters.tolist() == train.info.clusters.tolist()
  for i, name in enumerate(train.info.clusters):
    assert set(train.client(i)[1].tolist()) == {['art', 'clip', 'real'].index(name)}
  split = np.arange(300) % 2
  train, _ = data.load(
    'mine', arrays=own | {'split': split}, partition='labels', labels_per_client=1,
    num_clients=6,
  )  # fmt: skip
  assert train.info.clusters.tolist() == ['art', 'clip', 'real'] * 2
  mixed, _ = data.load('mine', arrays=own, partition='iid', num_clients=6)
  assert mixed.info.clusters is None
  (said,) = caplog.messages
  assert said == (
    'partition=iid drops the known clusters: 6 of 6 clients are dealt examples of '
    'several. partition=cluster+iid deals inside of each.'
  )


def test_natural_clients_that_are_left_out_are_told_of(caplog):
  own = arrays(RNG.random((40, 3)))
  data.load('mine', arrays=own, num_clients=4)
  assert not caplog.messages
  for _ in range(2):
    train, _ = data.load('mine', arrays=own, num_clients=3)
  assert train.num_clients == 3
  assert caplog.messages == [
    'num_clients=3 draws 3 of the 4 natural clients by the seed and leaves out 1.'
  ]


SCALES = {
  'test not divided by 255': lambda x: (x, x * 255),
  'test standardized': lambda x: (x, (x - 0.13) / 0.31),
  'training standardized': lambda x: ((x - 0.13) / 0.31, x),
  'training in -1..1': lambda x: (2 * x - 1, x),
}


@pytest.mark.parametrize('case', SCALES)
def test_a_test_split_on_another_scale_is_told_of(caplog, case):
  x = RNG.random((200, 6, 6)) ** 3
  split = np.arange(200) // 10 % 2
  own = arrays(x, split=split, client=np.arange(200) % 10)
  data.load('mine', arrays=own)
  assert not caplog.messages
  train, test = SCALES[case](x)
  data.load('mine', arrays=own | {'x': np.where(split[:, None, None], test, train)})
  assert any('bring both to one scale' in m for m in caplog.messages)


CLIENTS = {
  'not divided by 255': lambda x: x * 255,
  'divided twice': lambda x: x / 255,
  'standardized': lambda x: (x - 0.13) / 0.31,
}


@pytest.mark.parametrize('case', CLIENTS)
@pytest.mark.parametrize('few', [1, 5])
def test_clients_on_another_scale_are_told_of(caplog, case, few):
  x = RNG.random((200, 6, 6)) ** 3
  client = np.arange(200) % 10
  other = (client < few)[:, None, None]
  own = arrays(np.where(other, CLIENTS[case](x), x), client=client)
  data.load('mine', arrays=own)
  said = [m for m in caplog.messages if 'bring all clients to one scale' in m]
  assert len(said) == 1
  assert f'mine: {few} clients, such as 0,' in said[0] or ' of 10 clients' in said[0]


def test_clients_of_other_sizes_and_signs_are_on_one_scale(caplog):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(220, 3)) * rng.random((220, 1))
  client = np.r_[np.arange(200) // 20, np.arange(20) // 2 + 10]
  x[client == 3] = np.abs(x[client == 3])
  x[client == 4, 1:] = 0
  data.load('mine', arrays=arrays(x, client=client))
  assert not caplog.messages


def test_the_command_line_reports_the_range_and_the_copies(tmp_path, caplog):
  x = RNG.random((40, 5)) * [1, 1, 1, 1, 500]
  np.savez(tmp_path / 'mine.npz', **copied(x, 40))
  done = call('prepare_data', '--dataset=npz:mine.npz', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert f'values that models see: from {x.min():.4g} to {x.max():.4g}' in done.stdout
  assert '40 of 40 test examples (100 %) are also training examples; 0 %' in done.stdout
  of_range, of_copies = caplog.messages
  assert 'has in column 4' in of_range
  assert '40 of 40 test examples (100 %) are also training examples' in of_copies


def test_columns_that_hold_the_targets_are_named(caplog):
  x, y = RNG.random((60, 3)), RNG.permutation(np.arange(60) % 3)
  copy, names = (y == 1) * 4.0, ['a', 'b', 'c', 'd']
  for told in (2.0 * y, copy):
    caplog.clear()
    given = arrays(np.c_[x, told], y, feature_names=names)
    data.load('mine', arrays=given)
    said = 'mine: x holds the targets, in column d, as a copy of y does'
    assert [m.partition(';')[0] for m in caplog.messages] == [said]
    examples_checks.warn_once.cache_clear()
  caplog.clear()
  data.load('mine', arrays=arrays(np.c_[x, x[:, :1] ** 2], x[:, 1]), task='regression')
  assert caplog.messages == [
    'mine: x holds the targets, in column 1, as a copy of y does; if so, leave it out.'
  ]


def test_columns_that_hold_the_targets_in_another_unit_are_named(caplog):
  x, y = RNG.random((60, 2)), RNG.random((60, 2)) + 3
  x = np.c_[x, 0.3 - 2.5 * y[:, 1]]
  data.load('mine', arrays=arrays(x, y), task='regression')
  said = 'mine: x holds the targets, in column 2, as a copy of y does; if so, leave'
  assert [m for m in caplog.messages if m.startswith(said)]
  caplog.clear()
  noise = 1e-4 * RNG.random((60, 3))
  data.load('noisy', arrays=arrays(x + noise, y), task='regression')
  assert not caplog.messages


def test_values_that_occur_in_the_test_split_alone_are_told_of(caplog):
  split = np.repeat([0, 1], [40, 20])
  x = np.c_[RNG.random((60, 2)), np.where(split & (np.arange(60) % 4 == 0), 1, 0)]
  names = {'feature_names': ['a', 'b', 'color=violet']}
  data.load('mine', arrays=arrays(x, np.arange(60) % 2, split=split, **names))
  assert caplog.messages == [
    'mine: 5 of 20 test examples differ from all training examples in a column that '
    'these have alike, such as color=violet; models do not learn what it means.'
  ]
  caplog.clear()
  x[7, 2] = 0.5
  data.load('other', arrays=arrays(x, np.arange(60) % 2, split=split, **names))
  assert not caplog.messages


def test_columns_that_tell_classes_by_chance_or_by_sense_are_features(caplog):
  x, y = RNG.random((60, 3)), np.arange(60) % 3
  rare, constant = np.arange(60) == 3, np.ones(60)
  overlapping = np.where(np.arange(60) == 4, 1 - y, y)
  data.load('mine', arrays=arrays(np.c_[x, rare, constant, overlapping], y))
  data.load('mine', arrays=arrays(x, x[:, 0] ** 2), task='regression')
  assert not caplog.messages


def test_test_examples_of_classes_that_never_train_are_counted(caplog):
  x, split = RNG.random((60, 3)), np.repeat([0, 1], [40, 20])
  y = np.where((split == 1) & (np.arange(60) % 4 == 0), 5, np.arange(60) % 2)
  data.load('mine', arrays=arrays(x, y, split=split, num_classes=6))
  named = np.array(['a', 'b', '', '', '', 'zebra'])[y]
  data.load('named', arrays=arrays(x, named, split=split))
  told = '5 of 20 test examples are of classes without training examples, such as'
  assert caplog.messages == [
    f'mine: {told} 5; no model can be right on them.',
    f'named: {told} zebra; no model can be right on them.',
  ]


@pytest.mark.parametrize(
  ('task', 'y'),
  [('classification', np.zeros(40, int)), ('regression', np.full(40, 2.5)),
   ('multilabel', np.tile([1, 0], (40, 1)))],
)  # fmt: skip
def test_targets_that_are_all_alike_are_told_of(caplog, task, y):
  data.load('mine', arrays=arrays(RNG.random((40, 3)), y), task=task)
  assert caplog.messages == [
    'mine: all training examples have the same target; figures of models of it show '
    'nothing.'
  ]


def test_targets_far_from_1_are_told_of(caplog):
  x = RNG.random((40, 3))
  data.load('mine', arrays=arrays(x, 5 + x[:, 0] ** 2), task='regression')
  assert not caplog.messages
  prices = np.linspace(-20, 1e5, 40)
  data.load('mine', arrays=arrays(x, prices), task='regression')
  (said,) = caplog.messages
  assert 'mine: targets go from ' in said
  assert said.endswith('stay far from them: standardize y.')


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'seed': 1.5}, '`seed=1.5` must be a whole number'),
    ({'num_clients': 2.5}, '`num_clients=2.5` must be a whole number'),
    (
      {'task': 'Regression'},
      '`task=Regression` is unknown; .* Did you mean regression',
    ),
  ],
)
def test_options_of_other_types_are_refused(options, message):
  given = {'x': RNG.random((40, 3)), 'y': np.arange(40) % 2}
  with pytest.raises(UserError, match=message):
    data.load('mine', arrays=given, **options)
