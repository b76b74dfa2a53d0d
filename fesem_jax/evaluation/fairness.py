"""Fairness: the distribution of a metric over clients."""

import math
from typing import Any

import numpy as np


def fairness(values: np.ndarray, higher_is_better: bool) -> dict[str, Any]:
  """Fairness of a metric [M] over clients, without NaN; None where not defined.

  `clients` that count; the mean of the `worst_decile`, rounded up; the standard
  `deviation`; and the index (sum x)^2 / (n sum x^2) of `jain` et al. (1984).
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
