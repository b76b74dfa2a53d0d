"""scikit-learn's diabetes data: 442 patients, a regression; nothing to download."""

import importlib.metadata

import numpy as np

from fesem_jax.data.pool import Pool
from fesem_jax.tasks import REGRESSION


def load() -> Pool:
  """Ten features of each patient, and the progression of the disease after a year.

  Features and target are standardized over all 442 patients: x [442, 10] and y
  [442, 1] float32 (Efron et al., "Least Angle Regression", 2004).
  """
  package = importlib.metadata.distribution('scikit-learn')
  folder = package.locate_file('sklearn/datasets/data')
  x, y = (
    np.loadtxt(f'{folder}/diabetes_{name}.csv.gz', ndmin=2)
    for name in ('data_raw', 'target')
  )
  x, y = (
    ((a.reshape(len(a), -1) - a.mean(axis=0)) / a.std(axis=0)).astype(np.float32)
    for a in (x, y.reshape(-1, 1))
  )
  return Pool(x, y, 1, 1.0, task=REGRESSION.name)
