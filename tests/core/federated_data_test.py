"""Federated data on the host, by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import Attack, FederatedData, Groups, scale_of
from fesem_jax.core.types import Cohort
from fesem_jax.data import attacks
from fesem_jax.utils.errors import UserError


def some():
  """Four clients with 2, 1, 0 and 3 examples of two numbers."""
  names = np.array(['a', 'b', 'c', 'd'])
  data = FederatedData.from_arrays(
    np.arange(12.0).reshape(6, 2),
    np.array([0, 1, 2, 0, 1, 1]),
    np.array([2, 1, 0, 3]),
    client_ids=np.array([4, 9, 2, 7]),
    info=ClientInfo(names, np.array([1, 0, 0, 1]), ('even', 'odd')),
  )
  return dataclasses.replace(
    data,
    attack=Attack(np.array([False, True, False, True]), (attacks.Noise(),)),
    groups=Groups(np.array([2, 0, 1, 2], np.int32), 3),
  )


def test_defaults_of_data_from_arrays():
  data = FederatedData.from_arrays(np.ones((3, 2)), [0, 3, 1], [1, 0, 2])
  assert (data.num_clients, data.num_classes, data.max_examples) == (3, 4, 2)
  assert (data.scale, data.task) == (1, 'classification')
  assert data.client_ids.tolist() == [0, 1, 2]
  assert data.info.names.tolist() == ['0', '1', '2']
  assert data.offsets.tolist() == [0, 1, 1, 3]
  assert data.example_shape == (2,)
  listed = FederatedData.from_arrays([[1.0, 2.0], [3.0, 4.0]], [0, 1], [2])
  assert listed.x.tolist() == [[1, 2], [3, 4]]
  assert data.x.dtype == np.float32
  assert data.offsets.dtype == data.client_ids.dtype == data.y.dtype == np.int32
  # Batches of data without examples have a row all the same.
  none = FederatedData.from_arrays(np.ones((0, 2)), [], [], num_classes=2)
  assert (none.num_clients, none.max_examples) == (0, 1)
  empty = FederatedData.from_arrays(np.ones((0, 2)), [], [0, 0], num_classes=2)
  assert (empty.num_clients, empty.max_examples) == (2, 1)


def test_pixels_of_images_are_scaled():
  assert scale_of(np.zeros((1, 2, 2), np.uint8), 'x') == 1 / 255
  assert scale_of(np.zeros((1, 2, 2)), 'x') == scale_of(np.zeros((1, 2)), 'x') == 1
  bytes_of = np.zeros((2, 3), np.uint8)
  data = FederatedData.from_arrays(bytes_of, [0, 1], [2], scale=0.5)
  assert (data.scale, data.x.dtype) == (0.5, np.uint8)
  assert FederatedData.from_arrays(bytes_of[None], [0], [1]).scale == 1 / 255


X, Y = np.ones((3, 2)), [0, 1, 0]


@pytest.mark.parametrize(
  ('subject', 'arguments'),
  [
    ('task', {'task': 'ranking'}),
    ('x: is masked', {'x': np.ma.masked_greater(np.arange(6.0).reshape(3, 2), 3)}),
    ('y: is masked', {'y': np.ma.masked_equal(Y, 1)}),
    ('x: must be numbers', {'x': np.array([['a']] * 3)}),
    ('x: must have fewer', {'x': np.broadcast_to(np.uint8(0), (2**31, 1))}),
    ('y: has 2 rows', {'y': [0, 1]}),
    ('labels', {'y': [0, 1, -1]}),
    ('labels', {'y': [0.0, 0.5, 1.0]}),
    ('labels', {'y': np.zeros((3, 4), int)}),
    ('y: ', {'y': ['a', 'b', 'c']}),
    ('y: 2', {'y': [0, 1, 2], 'num_classes': 2}),
    ('x: row', {'x': np.where(np.eye(3, 2), np.nan, 1.0)}),
    ('x: row', {'x': np.where(np.eye(3, 2), 1e39, 1.0)}),
    ('y: has shape', {'y': np.zeros((3, 3), int), 'task': 'sequence'}),
    ('sizes', {'sizes': [[3]]}),
    ('sizes', {'sizes': [1.5, 1.5]}),
    ('sizes', {'sizes': [4, -1]}),
    ('sizes: sum to 2', {'sizes': [2]}),
    ('client_ids', {'client_ids': [0, 1]}),
    ('client_ids', {'client_ids': [0.5]}),
    ('client_ids', {'client_ids': [2**31]}),
    ('client_ids', {'client_ids': [1, 1], 'sizes': [1, 2]}),
    ('info', {'info': ClientInfo(['a', 'b'])}),
    ('x: uint8', {'x': np.zeros((3, 2), np.uint8)}),
    ('scale', {'scale': 0.0}),
    ('scale', {'scale': 1e-40}),
    ('num_classes', {'num_classes': 0}),
    ('num_classes', {'num_classes': 2.5}),
  ],
)
def test_arrays_that_are_no_split_are_refused(subject, arguments):
  with np.errstate(over='ignore'), pytest.raises(UserError, match=subject):
    FederatedData.from_arrays(**{'x': X, 'y': Y, 'sizes': [3], **arguments})


@pytest.mark.parametrize(
  ('subject', 'arguments'),
  [
    ('clusters', {'names': ['a', 'b'], 'clusters': [0, 1, 2]}),
    ("names: .*'b'", {'names': ['b', 'a', 'b']}),
    ('weights', {'names': ['a', 'b'], 'weights': [0.0, 0.0]}),
    ('weights', {'names': ['a', 'b'], 'weights': [-1.0, 2.0]}),
    ('weights', {'names': ['a', 'b'], 'weights': [np.inf, 2.0]}),
  ],
)
def test_infos_have_one_value_for_each_client(subject, arguments):
  info = ClientInfo(np.array(['a', 'b']), [0, 1])
  assert info.clusters.tolist() == [0, 1]
  # Infos of as many clients share programs.
  assert hash(info) == hash(ClientInfo(np.array(['c', 'd'])))
  assert info == ClientInfo(np.array(['c', 'd'])) != ClientInfo(np.array(['a']))
  with pytest.raises(UserError, match=subject):
    ClientInfo(**arguments)


def test_programs_depend_on_numbers_and_names_and_see_arrays_only():
  data = some()
  leaves = [data.x, data.y, data.offsets, data.client_ids]
  leaves += [data.attack.bad, data.groups.ids]
  for actual, expected in zip(jax.tree.leaves(data), leaves, strict=True):
    assert actual is expected
  ids = np.arange(4)
  cohort = Cohort(ids, everyone=True)
  assert cohort.round is None
  assert [leaf is ids for leaf in jax.tree.leaves(cohort)] == [True]
  # Inside of a program, sizes are traced.
  sizes = jax.jit(lambda data: data.sizes())(data)
  assert sizes.tolist() == [2, 1, 0, 3]
  assert isinstance(data.sizes(), np.ndarray)


def test_sizes_are_of_all_or_of_some_clients():
  data = some()
  assert data.sizes().tolist() == [2, 1, 0, 3]
  assert data.sizes(jnp.array([3, 0, 4])).tolist() == [3, 2, 0]  # 4 is no client.


def split(data):
  """The data as on two devices: examples flat and padded, rows padded to four."""
  x = np.pad(data.x, ((0, 0), (0, 1)), constant_values=-1)
  rows, of_devices = np.array([0, 1, 2, 2, 3, 4, 5, 5]), np.array([[0, 3], [3, 6]])
  return dataclasses.replace(
    data, x=x[rows], y=data.y[rows], flat_from=(1, 2), shard_rows=of_devices
  )


def test_clients_of_split_data_have_their_own_rows():
  data = some()
  held = split(data)
  assert held.example_shape == (1, 2)
  for i in range(4):
    (x, y), (expected, labels) = held.client(i), data.client(i)
    np.testing.assert_array_equal(x, expected[:, None])
    np.testing.assert_array_equal(y, labels)
  np.testing.assert_array_equal(held.compact(held.y), data.y)
  np.testing.assert_array_equal(data.compact(data.x), data.x)
  # All know all sizes, but a device that sees its own rows those of its clients.
  ids = jnp.arange(4)
  assert held.sizes(ids).tolist() == [2, 1, 0, 3]
  for device, own in enumerate(([2, 1, 0, 0], [0, 0, 0, 3])):
    part = dataclasses.replace(held, shard_rows=held.shard_rows[device : device + 1])
    assert part.sizes(ids).tolist() == own


@pytest.mark.parametrize('held', [False, True])
def test_reordered_clients_keep_what_is_theirs(held):
  data = split(some()) if held else some()
  result = data.reorder(np.array([3, 1]), num_clients=4)
  assert result.offsets.tolist() == [0, 3, 4, 4, 4]
  # Of two clients that pad, ids are beyond all others.
  assert result.client_ids.tolist() == [7, 9, 10, 11]
  assert result.offsets.dtype == result.client_ids.dtype == np.int32
  for new, old in ((0, 3), (1, 1)):
    for actual, expected in zip(result.client(new), data.client(old), strict=True):
      np.testing.assert_array_equal(actual, expected)
  assert result.client(3)[0].shape == (0, *data.example_shape)
  assert result.info.names.tolist() == ['d', 'b']
  assert result.info.clusters.tolist() == [1, 0]
  assert result.info.cluster_names == ('even', 'odd')
  assert result.attack.bad.tolist() == [True, True, False, False]
  assert result.attack.kinds == (attacks.Noise(),)
  assert result.groups.ids.tolist() == [2, 0, 0, 0]
  assert result.groups.count == 3
  assert (result.num_classes, result.max_examples, result.task) == (3, 3, data.task)
  assert result.shard_rows is None
  # Without a number, no client is added; without clusters, none are known.
  y = np.arange(2.0)[:, None]
  plain = FederatedData.from_arrays(np.ones((2, 1)), y, [1, 1], task='regression')
  turned = plain.reorder(np.array([1, 0]))
  assert (turned.client_ids.tolist(), turned.task) == ([1, 0], 'regression')
  assert turned.info.clusters is turned.attack is turned.groups is None
