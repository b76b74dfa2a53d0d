"""Examples in the forms in which programs hold them."""

import numpy as np
import pytest
from scipy import sparse
from sklearn import datasets

from fesem_jax import data
from fesem_jax.utils.errors import UserError

RNG = np.random.default_rng(0)
X, Y = RNG.random((40, 3)).astype(np.float32), np.arange(40) % 2


class Tensor:
  """What a tensor of PyTorch can do where it needs a gradient."""

  def __init__(self, values):
    self._values = values

  def __array__(self, dtype=None, copy=None):
    raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

  def detach(self):
    return self

  def cpu(self):
    return self

  def numpy(self):
    return self._values


class TensorDataset:
  def __init__(self, *tensors):
    self.tensors = tensors


class Vision:
  """A data set of torchvision."""

  classes = ('cat', 'dog')

  def __init__(self, x=X, y=Y):
    self.data, self.targets = x, list(y)


class Subset:
  def __init__(self, dataset, indices):
    self.dataset, self.indices = dataset, indices


def same(train, test, x=X, y=Y):
  """Whether both splits together are the examples x, y."""
  got = [
    (row.tobytes(), int(label))
    for part in (train, test)
    for row, label in zip(part.x, part.y, strict=True)
  ]
  return sorted(got) == sorted(
    (row.tobytes(), int(label)) for row, label in zip(x, y, strict=True)
  )


DEALT = {
  'dict': {'x': X, 'y': Y}, 'tensors': {'x': Tensor(X), 'y': Tensor(Y)},
  'TensorDataset': TensorDataset(Tensor(X), Tensor(Y)), 'torchvision': Vision(),
  'Subset': Subset(Vision(np.r_[X, X + 5], np.r_[Y, Y]), list(range(40))),
  'Bunch': datasets.load_iris(), 'sparse': {'x': sparse.csr_matrix(X), 'y': Y},
  'sparse array': {'x': sparse.coo_array(X), 'y': Y},
}  # fmt: skip


@pytest.mark.parametrize('form', DEALT)
def test_examples_that_are_dealt(form):
  train, test = data.load('mine', arrays=DEALT[form], num_clients=4)
  if form == 'Bunch':
    iris = datasets.load_iris()
    assert same(train, test, iris.data.astype(np.float32), iris.target)
  else:
    assert same(train, test)
  named = form in ('torchvision', 'Subset')
  assert train.info.class_names == (('cat', 'dog') if named else None)


def clients(count):
  return {
    name: (X[rows], Y[rows])
    for name, rows in zip('cab', np.split(np.arange(40), [10, 10 + count]), strict=True)
  }


def test_the_examples_of_each_client():
  own = clients(20)
  pairs = [own[name] for name in 'cab']
  arrays = {name: {'x': x, 'y': y} for name, (x, y) in own.items()}
  for given, names in (
    (own, ['a', 'b', 'c']),
    (arrays, ['a', 'b', 'c']),
    (pairs, ['client0', 'client1', 'client2']),
    ({3: own['a'], 20: own['b'], 1: own['c']}, ['1', '3', '20']),
  ):
    train, test = data.load('mine', arrays=given)
    assert train.info.names.tolist() == names
    assert same(train, test)
  train, test = data.load('mine', arrays=own)
  for i, name in enumerate('abc'):
    (x, y), (more, labels) = train.client(i), test.client(i)
    assert {row.tobytes() for row in np.r_[x, more]} == {
      row.tobytes() for row in own[name][0]
    }
    assert len(y) + len(labels) == len(own[name][1])


def test_train_and_test_apart():
  for given in (
    {'train': clients(20), 'test': clients(10)},
    {'train': Vision(), 'test': Vision(X + 5)},
  ):
    train, test = data.load('mine', arrays=given, num_clients=3)
    assert sorted(map(bytes, np.asarray(train.x))) == sorted(map(bytes, X))
    assert len(test.y) == 40


class Pairs:
  """A data set of PyTorch whose items are pairs, as that of torchvision's folders."""

  def __init__(self, x, y, **others):
    self._pairs = list(zip(x, y, strict=True))
    vars(self).update(others)

  def __len__(self):
    return len(self._pairs)

  def __getitem__(self, i):
    x, y = self._pairs[i]
    return Tensor(x), y


def test_items_are_read_where_a_dataset_has_no_arrays_or_changes_them():
  items = [Pairs(X, Y.tolist()), [(x, int(y)) for x, y in zip(X, Y, strict=True)]]
  items.append(Subset(Pairs(np.r_[X, X + 5], np.r_[Y, Y]), list(range(40))))
  for given in items:
    train, test = data.load('mine', arrays=given, num_clients=4)
    assert same(train, test)
  changed = Pairs(
    X, 1 - Y, data=X, targets=Y, classes=('a', 'b'), target_transform=bool
  )
  train, test = data.load('mine', arrays=changed, num_clients=4)
  assert same(train, test, X, 1 - Y)
  assert train.info.class_names == ('a', 'b')


def test_clients_may_be_datasets_or_have_splits_of_their_own():
  apart = [Subset(Vision(), range(i, i + 10)) for i in range(0, 40, 10)]
  apart[1] = TensorDataset(X[10:20], Y[10:20])
  for given in (apart, {f'client{i}': held for i, held in enumerate(apart)}):
    train, test = data.load('mine', arrays=given)
    assert train.info.names.tolist() == [f'client{i}' for i in range(4)]
    assert same(train, test)
    assert train.client(1)[0][0].tobytes() in {row.tobytes() for row in X[10:20]}
  own = {'train': (X[:30], Y[:30]), 'test': (X[30:], Y[30:])}
  for given in ({'b': own, 'a': own}, [own, own]):
    train, test = data.load('mine', arrays=given)
    assert train.info.names.tolist() in (['a', 'b'], ['client0', 'client1'])
    for i in range(2):
      np.testing.assert_array_equal(train.client(i)[0], X[:30])
      np.testing.assert_array_equal(test.client(i)[1], Y[30:])


def test_clients_that_number_their_classes_differently_are_refused():
  def of(*classes):
    return Pairs(X, Y.tolist(), data=X, targets=Y, classes=classes)

  same_names = {'a': of('cat', 'dog'), 'b': of('cat', 'dog')}
  assert data.load('mine', arrays=same_names)[0].num_clients == 2
  assert data.load('mine', arrays=same_names | {'c': (X, Y)})[0].num_clients == 3
  with pytest.raises(UserError, match='classes of a'):
    data.load('mine', arrays={'a': of('cat', 'dog'), 'b': of('dog', 'fox')})


def test_names_of_other_programs():
  test_x, test_y = X[::2] + 5, Y[::2, None]
  for given in (
    {'x_train': X, 'y_train': Y[:, None], 'x_test': test_x, 'y_test': test_y},
    {
      'train_images': X, 'train_labels': Y[:, None], 'val_images': X[:2],
      'val_labels': Y[:2, None], 'test_images': test_x, 'test_labels': test_y,
      'num_classes': 2,
    },
  ):  # fmt: skip
    train, test = data.load('mine', arrays=given, num_clients=4)
    assert sorted(map(bytes, train.x)) == sorted(map(bytes, X))
    assert sorted(map(bytes, test.x)) == sorted(map(bytes, test_x))
  for x, y in (('X', 'Y'), ('data', 'labels'), ('images', 'target')):
    assert same(*data.load('mine', arrays={x: X, y: Y}, num_clients=4))
  with pytest.raises(UserError, match='has an array X, which is unknown'):
    data.load('mine', arrays={'X': X, 'data': X, 'labels': Y}, num_clients=4)
  with pytest.raises(UserError, match='has an array x_train, which is unknown'):
    data.load('mine', arrays={'x_train': X, 'y_train': Y}, num_clients=4)
  with pytest.raises(UserError, match='must hold the same arrays'):
    data.load('mine', arrays={'x_train': X, 'y_train': Y, 'x_test': X}, num_clients=4)


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (5, '`arrays`'),
    (X, '`arrays`'),
    ({'a': X, 'b': Y}, 'an array a'),
    ({'a': (X, Y[:3])}, 'client a'),
    ({'train': Vision(), 'test': {'x': X, 'y': Y}}, 'same arrays'),
    ({'x_train': X, 'y_train': Y[1:], 'x_test': X[:9], 'y_test': Y[:10]}, 'of train'),
    ({'train': {'x': X, 'y': Y, 'scale': 1.0}, 'test': {'x': X, 'y': Y, 'scale': 2.0}},
     'scale'),
    ({'train': (X, Y), 'test': (X, Y), 'val': (X, Y)}, 'train, test, val'),
    (((X, Y), (X, Y)), 'tuple'),
    ({1: (X, Y), '1': (X, Y)}, 'two clients'),
  ],
)  # fmt: skip
def test_other_forms_are_named(given, message):
  with pytest.raises(UserError, match=message):
    data.load('mine', arrays=given)


def test_weights_of_clients_may_be_those_of_both_splits():
  part = {
    'x': X, 'y': Y, 'client': np.repeat([0, 1], 20), 'weight': np.repeat([3, 1], 20),
  }  # fmt: skip
  first = {name: value[::4] for name, value in part.items()}
  train, _ = data.load('mine', arrays={'train': part, 'test': first})
  assert train.weights.tolist() == [3, 1]


def test_names_of_clients_may_be_any_values():
  train, _ = data.load('mine', arrays={('a', 1): (X, Y), ('a', 2): (X + 1, Y)})
  assert train.info.names.tolist() == ["('a', 1)", "('a', 2)"]
