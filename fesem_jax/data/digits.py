"""scikit-learn's 1,797 real handwritten 8x8 digits; nothing to download."""

import importlib.metadata

import numpy as np

from fesem_jax.data.pool import Pool


def load() -> Pool:
  """Images [1797, 8, 8] uint8 with values 0..16, labels 0..9."""
  # As `sklearn.datasets.load_digits` does, which takes a second to import.
  package = importlib.metadata.distribution('scikit-learn')
  file = str(package.locate_file('sklearn/datasets/data/digits.csv.gz'))
  rows = np.loadtxt(file, np.uint8, delimiter=',')
  return Pool(rows[:, :64].reshape(-1, 8, 8), rows[:, 64].astype(np.int64), 10, 1 / 16)
