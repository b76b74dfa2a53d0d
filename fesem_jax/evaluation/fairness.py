"""Fairness: the distribution of a metric over clients."""

import math
from typing import Any

import numpy as np


def fairness(values: np.ndarray, higher_is_better: bool) -> dict[str, Any]:
  """The worst tenth of the clients, the deviation over clients, and Jain's index.

  `values` [M] are a metric of each client; NaN does not count.

  Returns `clients`, how many count; `worst_decile`, the mean of the worst tenth of
  them, rounded up; `deviation`, the standard deviation; and `jain`, the index
  (sum x)^2 / (n sum x^2) of Jain et al. (1984). What is not defined is None.
  """
  counted = np.sort(np.asarray(values, np.float64))
  counted = counted[~np.isnan(counted)]
  if not len(counted):
    return {'clients': 0, 'worst_decile': None, 'deviation': None, 'jain': None}
  if not higher_is_better:
    counted = counted[::-1]
  worst = counted[: math.ceil(len(counted) / 10)]
  squares = (counted**2).sum()
  finite = np.isfinite(counted).all()
  jain = counted.sum() ** 2 / (len(counted) * squares) if finite and squares else None
  return {
    'clients': len(counted),
    'worst_decile': float(worst.mean()),
    'deviation': float(counted.std()) if finite else None,
    'jain': None if jain is None else float(jain),
  }
