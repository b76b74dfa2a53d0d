"""`data.describe` counts what two splits hold."""

import numpy as np
import pytest

import fesem_jax as fj


def test_rows_are_those_of_the_splits():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(40, 3)).astype(np.float32)
  y = rng.integers(0, 4, 40)
  x[1], y[1] = x[0], y[0]  # Twice in train.
  x[30], y[30] = x[2], y[2]  # Of train, in test.
  x[31], y[31] = x[3], y[3] + 1  # Another label.
  train, test = (
    fj.FederatedData.from_arrays(x[rows], y[rows], sizes, num_classes=5, scale=0.5)
    for rows, sizes in ((slice(0, 30), [20, 10]), (slice(30, 40), [4, 6]))
  )
  frame = fj.data.describe(train, test)
  assert frame.loc['examples'].tolist() == [30, 10]
  assert frame.loc['max client'].tolist() == [20, 6]
  assert frame.loc['classes', 'train'] == len(np.unique(y[:30]))
  for name, rows in (('train', x[:30]), ('test', x[30:])):
    for key, value in (('min', rows.min()), ('max', rows.max())):
      assert frame.loc[f'features, {key}', name] == pytest.approx(0.5 * value)
    size = 0.5 * np.sqrt(np.square(rows).mean())
    assert frame.loc['features, rms', name] == pytest.approx(size)
  assert frame.loc['duplicates'].tolist() == [2 / 30, 0]
  assert frame.loc['in train'].tolist() == [1, 0.1]
