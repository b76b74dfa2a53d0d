"""Numbers of a page: few digits, and null for values that are not numbers."""

import math
from collections.abc import Iterable


def rounded(values: Iterable[float], digits: int = 4) -> list[float | int | None]:
  """Numbers of so many digits."""
  return [_rounded(float(value), digits) for value in values]


def _rounded(value: float, digits: int) -> float | int | None:
  if not math.isfinite(value):
    return None
  short = float(f'{value:.{digits}g}')
  return int(short) if short == int(short) and abs(short) < 1e15 else short
