"""Data of other tasks than classification: partitions and splits keep their targets."""

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.data import hold_out

COUNT = 120


def arrays(task):
  """Rows whose features are their numbers."""
  rng = np.random.default_rng(0)
  y = rng.normal(size=(COUNT, 3))
  if task == 'sequence':
    y = rng.integers(-1, 5, (COUNT, 6))
  x = np.repeat(np.arange(COUNT, dtype=np.float32)[:, None], 6, axis=1)
  return {'x': x, 'y': y, 'client': np.arange(COUNT) % 6, 'task': task}


@pytest.mark.parametrize('task', ['regression', 'sequence'])
@pytest.mark.parametrize('partition', ['natural', 'iid', 'unequal', 'lognormal'])
def test_examples_keep_their_targets(task, partition):
  given = arrays(task)
  pool = fj.data.from_arrays(**given)
  train, test = fj.data.federate(pool, partition, num_clients=6)
  assert train.task == task
  seen = np.concatenate([train.x, test.x])[:, 0]
  assert len(np.unique(seen)) == len(seen) == COUNT
  for split in (train, test, *hold_out(train), train.reorder(np.array([4, 1]))):
    assert split.task == task
    rows = np.asarray(split.x)[:, 0].astype(int)
    wanted = given['y'][rows].astype(np.asarray(split.y).dtype)
    np.testing.assert_array_equal(split.y, wanted)
