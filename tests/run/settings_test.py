"""What a run says about its two splits."""

import numpy as np
import pytest

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.settings import check_splits
from fesem_jax.utils.notices import warn_once


def split(seed, labels=(0, 1, 0, 1)):
  x = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
  return FederatedData.from_arrays(x, np.array(labels), [2, 2], num_classes=2)


ONE = split(0)


@pytest.mark.parametrize(
  ('test', 'same'),
  [(ONE, True), (split(0), True), (split(1), False), (split(0, (1, 1, 0, 1)), False)],
)
def test_a_test_split_that_is_the_training_split_is_named(test, same, caplog):
  warn_once.cache_clear()
  caplog.set_level('WARNING', logger='absl')
  check_splits(ONE, test)
  assert ('4 of 4 test examples are training examples' in caplog.text) == same
