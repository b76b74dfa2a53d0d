"""Fairness: the distribution of a metric over clients."""

import math
from typing import Any

import numpy as np


def fairness(values: np.ndarray, higher_is_better: bool) -> dict[str, Any]:
  """The worst tenth of the clients, the deviation over clients, and Jain's index.

  `values` [M] are a figure of each client; NaN for clients that were not measured,
  which do not count. Infinite ones do, as of a model whose outputs overflow.

  Returns `clients`, how many count; `worst_decile`, the mean of the worst tenth of
  them, rounded up; `deviation`, their standard deviation; and `jain`, Jain's index
  (Jain et al., 1984), (sum x)^2 / (n sum x^2), between 1 / n and 1, where all have the
  same. Figures are None where no client counts, the index where all values are 0 too,
  and the deviation and the index where a value is infinite.
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
