"""What a run says about its two splits."""

import dataclasses

import numpy as np
import pytest

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run import settings
from fesem_jax.run.settings import check_splits
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


def test_splits_of_one_large_array_are_told_of(monkeypatch, caplog):
  """More examples than are counted."""
  monkeypatch.setattr(settings, '_MOST_COUNTED', 0)
  caplog.set_level('WARNING', logger='absl')
  x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
  first, other, last = (dataclasses.replace(ONE, x=x[i : i + 4]) for i in (0, 2, 4))
  for test, told in ((last, False), (other, True), (first, True)):
    warn_once.cache_clear()
    caplog.clear()
    check_splits(first, test)
    assert ('both are of one array' in caplog.text) == told
