"""The 120 runs of the comparison, as they are dealt to PyTorch's processes."""

import numpy as np

import fesem_jax as fj
from benchmarks.peers import processes, table


def data(seed):
  return fj.data.load('digits', partition='dirichlet', num_clients=5, seed=seed)


class Stub:
  """A process that is right as often as the rate is low, but for the first method."""

  def __init__(self):
    self.asked, self.versions = [], {'torch': '0'}

  def write(self, command):
    self.asked.append(command)

  def read(self):
    runs = self.asked[-1]['runs']
    return {'done': [[r if m == 'first' else 1 - r, 100 * s] for m, r, s in runs]}

  def close(self):
    pass


def test_each_method_runs_with_the_best_rate_of_tuning(monkeypatch):
  stubs = [Stub(), Stub()]
  monkeypatch.setattr(processes, 'start', lambda command, per_core: stubs)
  found = table.measure(
    'python', ['first', 'second'], data, [0.1, 0.5], [7], [1, 2], rounds=3
  )
  of_tuning, of_seeds = zip(*(stub.asked for stub in stubs), strict=True)
  assert [len(part['runs']) for part in of_tuning] == [2, 2]
  reported = [run for part in of_seeds for run in part['runs']]
  assert sorted(reported) == [
    ('first', 0.5, 1), ('first', 0.5, 2), ('second', 0.1, 1), ('second', 0.1, 2),
  ]  # fmt: skip
  assert found['accuracy'] == {'first': 0.5, 'second': 0.9}
  assert found['steps']['first', 0.5, 2] == 200
  assert len(found['steps']) == 2 * 2 + 2 * 2


def test_arrays_are_the_examples_of_each_client():
  arrays, classes = table._arrays(data, [3])
  train, test = data(3)
  x, sizes = arrays['3/train/x'], arrays['3/train/sizes']
  own = np.split(x, np.cumsum(sizes)[:-1])[2]
  want, labels = train.client(2)
  np.testing.assert_allclose(own, want.reshape(len(want), -1) * train.scale)
  np.testing.assert_array_equal(
    np.split(arrays['3/train/y'], np.cumsum(sizes)[:-1])[2], labels
  )
  assert classes == 10
  assert len(arrays['3/test/y']) == int(np.sum(test.sizes()))


def test_steps_of_a_round_are_those_of_batches_of_ten():
  train, test = data(0)
  model = fj.models.build('logistic', train.example_shape, train.num_classes)
  local = fj.local_training(model, fj.local_optimizer('sgd', 0.1))
  want = int(np.ceil(np.asarray(train.sizes()) / 10).sum())
  found = table.steps_here(lambda: fj.algorithms.build('fed_avg', local), (train, test))
  assert found == want
