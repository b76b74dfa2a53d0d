"""scikit-learn's 1,797 real handwritten 8x8 digits; nothing to download."""

import numpy as np
from sklearn import datasets

from fesem_jax.data.pool import Pool


def load() -> Pool:
  """Images [1797, 8, 8] uint8 with values 0..16, labels 0..9."""
  digits = datasets.load_digits()
  return Pool(digits.images.astype(np.uint8), digits.target, 10, scale=1 / 16)
