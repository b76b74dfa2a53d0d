"""The doors for own data: what they read, and what they refuse."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError

COUNT = 40


def arrays(**changes):
  rng = np.random.default_rng(0)
  columns = {
    'x': rng.normal(size=(COUNT, 4)).astype(np.float32),
    'y': np.arange(COUNT) % 3,
    'client': np.array(['b', 'a', 'c', 'd'] * 10),
  }
  return {name: x for name, x in (columns | changes).items() if x is not None}


def frame(**changes):
  columns = {
    'age': np.linspace(0, 1, COUNT), 'Ward': ['x', 'y'] * 20, 'Hospital': [7, 10] * 20,
    'income': ['low', 'high', 'low', 'low'] * 10,
  }  # fmt: skip
  return pd.DataFrame(columns | changes)


def test_arrays_are_kept_as_they_are():
  mine = arrays(weight=np.tile([1, 2, 0, 4], 10), cluster=['s', 'n'] * 20)
  pool = data.from_arrays(**mine)
  np.testing.assert_array_equal(pool.x, mine['x'])
  np.testing.assert_array_equal(pool.y, mine['y'])
  np.testing.assert_array_equal(pool.names[pool.client], mine['client'])
  assert pool.weight.tolist() == [2, 1, 0, 4]  # Of a, b, c, d.
  assert np.array(pool.cluster_names)[pool.cluster].tolist() == ['s', 'n'] * 20
  train, test = data.federate(pool)
  assert train.info.names.tolist() == ['a', 'b', 'c', 'd']
  assert train.info.clusters.tolist() == [0, 1, 1, 0]
  assert test.weights.tolist() == [2, 1, 0, 4]
  again = data.from_arrays(jnp.asarray(mine['x']), mine['y'].tolist())
  np.testing.assert_array_equal(again.x, pool.x)


def test_numbered_clients_are_in_the_order_of_their_numbers():
  pool = data.from_arrays(**arrays(client=np.array([10, 9, 100, 2] * 10)))
  assert pool.names.tolist() == ['2', '9', '10', '100']


@pytest.mark.parametrize('kind', ['O', 'U3', 'S3'])
def test_classes_may_have_names(kind):
  names = np.array(['dog', 'cat', 'cat', 'cow'] * 10).astype(kind)
  pool = data.from_arrays(**arrays(y=names.astype(str) if kind == 'S3' else names))
  assert pool.class_names == ('cat', 'cow', 'dog')
  assert pool.y[:4].tolist() == [2, 0, 0, 1]
  pool_values = data.from_arrays(
    **arrays(y=names.astype(str), class_names=['dog', 'cat', 'cow'])
  )
  assert (pool_values.y[:4].tolist(), pool_values.num_classes) == ([0, 1, 1, 2], 3)


def test_bytes_are_pixels_or_need_a_scale():
  x = np.ones((COUNT, 3, 3), np.uint8)
  assert data.from_arrays(**arrays(x=x)).scale == 1 / 255
  assert data.from_arrays(**arrays(x=x[:, 0], scale=1)).x.dtype == np.uint8


def test_a_frame_becomes_columns_and_roles():
  pool = data.from_frame(frame(), label='Income', client='hospital')
  assert pool.x.shape == (COUNT, 3)  # Age, and wards x and y.
  np.testing.assert_array_equal(pool.x[:, 1:], np.tile(np.eye(2), (20, 1)))
  assert pool.class_names == ('high', 'low')
  assert pool.names.tolist() == ['7', '10']
  named = frame().rename(columns={'income': 'LABEL', 'Hospital': 'Client'})
  np.testing.assert_array_equal(data.from_frame(named).client, pool.client)
  few = data.from_frame(
    frame(), label='age', drop=['ward', 'income'], task='regression'
  )
  assert (few.x.shape, few.client) == ((COUNT, 1), None)
  typed = frame().astype({'Hospital': 'Int64', 'Ward': 'category'})
  again = data.from_frame(typed, label='income', client='Hospital')
  np.testing.assert_array_equal(again.x, pool.x)


def test_a_server_has_test_examples_of_its_own():
  x, y = np.ones((5, 4), np.float32), ['cat', 'dog'] * 2 + ['cat']
  mine = arrays(y=np.array(['dog', 'cat'] * 20), server_test=(x, y))
  train, test = data.federate(data.from_arrays(**mine), standardize=True)
  server_x, server_y = test.server_test
  assert server_y.tolist() == [0, 1, 0, 1, 0]
  assert (train.server_test, server_x.shape) == (None, (5, 4))
  mean = (train.x.astype(np.float64)).mean(axis=0)
  np.testing.assert_allclose(mean, 0, atol=1e-6)
  assert (server_x != x).any()  # Standardized likewise.


ONES = np.ones((COUNT, 4))
REFUSED = [
  (lambda: arrays(x=np.full((COUNT, 2), np.nan)), 'x: row 0'),
  (lambda: arrays(x=np.full((COUNT, 2), 1e300)), 'x: row 0'),
  (lambda: arrays(x=np.array([['a']] * COUNT)), 'x: must be numbers'),
  (lambda: arrays(x=np.ones(COUNT)), 'x: has shape'),
  (lambda: arrays(x=np.ones((COUNT, 3, 8, 8))), 'x: has channels first'),
  (lambda: arrays(x=np.ones((COUNT, 3), np.uint8)), 'x: uint8'),
  (lambda: arrays(x=np.ma.masked_less(ONES, 2)), 'x: is masked'),
  (lambda: arrays(x=ONES[:-1]), 'client: shape'),
  (lambda: arrays(y=np.arange(COUNT) - 1), 'y: labels'),
  (lambda: arrays(y=np.arange(COUNT) / 2), 'y: labels'),
  (lambda: arrays(y=np.eye(4)[np.arange(COUNT) % 4]), 'y: shape'),
  (lambda: arrays(y=np.array(['a', None] * 20)), 'y: row 1'),
  (lambda: arrays(y=['a', 'b'] * 20, class_names=['a']), 'y: '),
  (lambda: arrays(num_classes=2), 'y: 2 is not in'),
  (lambda: arrays(task='ranking'), 'task: '),
  (lambda: arrays(client=['a'] * 3), 'client: shape'),
  (lambda: arrays(client=np.r_[np.nan, np.ones(COUNT - 1)]), 'client: row 0'),
  (lambda: arrays(client=['a', 'nan'] * 20), 'client: row 1'),
  (lambda: arrays(client=np.array(['a', ''] * 20)), 'client: row 1'),
  (lambda: arrays(client=np.array([1, '1'] * 20, object)), 'client: mixes'),
  (lambda: arrays(split=np.full(COUNT, 2)), 'split: row 0'),
  (lambda: arrays(split=['train', 'valid'] * 20), 'split: row 1'),
  (lambda: arrays(split=np.zeros(COUNT)), 'split: '),
  (lambda: arrays(split=[1, 0, 0, 0] * 10), 'split: clients'),
  (lambda: arrays(cluster=np.arange(COUNT)), 'cluster: client'),
  (lambda: arrays(weight=np.arange(COUNT)), 'weight: client'),
  (lambda: arrays(weight=np.ones(COUNT), client=None), 'weight: needs client'),
]  # fmt: skip


@pytest.mark.parametrize(('changes', 'subject'), REFUSED)
def test_bad_arrays_are_refused(changes, subject):
  with pytest.raises(UserError, match=f'^{subject}'):
    data.from_arrays(**changes())


@pytest.mark.parametrize('weight', [-1.0, 0.0, np.inf])
def test_bad_weights_are_refused(weight):
  pool = data.from_arrays(**arrays(weight=np.full(COUNT, weight)))
  with pytest.raises(UserError, match=r'^weights: '):
    data.federate(pool)


@pytest.mark.parametrize(
  ('changes', 'options', 'subject'),
  [
    ({'age': [np.nan, *range(COUNT - 1)]}, {}, r"columns: \['age'\] have missing"),
    ({'Ward': [None, 'x'] * 20}, {}, r"columns: \['Ward'\] have missing"),
    ({'income': [None, 'x'] * 20}, {}, 'y: row 0'),
    ({'age': ['1', '2', '3', '?'] * 10}, {}, r"columns: \['age'\] are numbers"),
    ({'day': pd.Timestamp('2020-01-01')}, {}, r"columns: \['day'\] are neither"),
    ({'AGE': 1.0}, {'client': 'aGe'}, r"columns: \['age', 'AGE'\] differ"),
    ({}, {'label': 'z'}, "columns: no 'z'"),
    ({}, {'label': ''}, "columns: no 'label'"),
    ({}, {'client': 'z'}, "columns: no 'z'"),
    ({}, {'drop': ['z']}, "columns: no 'z'"),
  ],
)
def test_bad_frames_are_refused(changes, options, subject):
  with pytest.raises(UserError, match=f'^{subject}'):
    data.from_frame(frame(**changes), **{'label': 'income'} | options)


def test_columns_of_many_texts_are_no_features():
  notes = pd.DataFrame(
    {'y': np.arange(1100) % 2, 'note': [f'n{i}' for i in range(1100)]}
  )
  with pytest.raises(UserError, match=r"^columns: \['note'\] have over"):
    data.from_frame(notes)
