"""What a run says about its two splits."""

import numpy as np
import pytest

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import examples_checks
from fesem_jax.run.checks import check_splits
from fesem_jax.utils.notices import warn_once


def split(seed, labels=(0, 1, 0, 1)):
  x = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
  return FederatedData.from_arrays(x, np.array(labels), [2, 2], num_classes=2)


ONE = split(0)
PART = FederatedData.from_arrays(
  np.r_[ONE.x[3:], split(2).x[:3]], np.array([1, 0, 1, 0]), [2, 2], num_classes=2
)


@pytest.mark.parametrize(
  ('test', 'copies'),
  [(ONE, 4), (split(0), 4), (split(1), 0), (split(0, (1, 0, 1, 0)), 0), (PART, 1)],
)
def test_test_examples_that_are_training_examples_are_counted(test, copies, caplog):
  warn_once.cache_clear()
  caplog.set_level('WARNING', logger='absl')
  check_splits(ONE, test)
  said = f'{copies} of 4 test examples ({25 * copies} %) are also training examples'
  assert (said in caplog.text) == bool(copies)


@pytest.mark.parametrize('dtype', ['f4', 'u1'])
def test_copies_are_looked_for_in_a_sample_of_many_examples(monkeypatch, caplog, dtype):
  monkeypatch.setattr(examples_checks, '_MOST_COUNTED', 0)
  monkeypatch.setattr(examples_checks, '_SAMPLE', 50)
  caplog.set_level('WARNING', logger='absl')
  rng = np.random.default_rng(0)

  def rows(count):
    return (256 * rng.random((count, 9, 9))).astype(dtype)

  def federated(x):
    return FederatedData.from_arrays(x, np.arange(len(x)) % 2, [len(x)], scale=0.01)

  x = rows(200)
  train = federated(x)
  for test, copies in ((rows(100), 0), (np.r_[x[20:60], rows(60)], 20), (x[:100], 50)):
    warn_once.cache_clear()
    caplog.clear()
    check_splits(train, federated(test))
    said = f'The test split, in a sample: {copies} of 50 test examples'
    assert (said in caplog.text) == bool(copies)
