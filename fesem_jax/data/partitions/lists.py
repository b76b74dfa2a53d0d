"""Lists that define the groups of a partition, parsed from flags."""

import math
from collections.abc import Sequence

from fesem_jax.utils.errors import UserError, argument

_MAX_DEGREES = 10.0**6

Pair = tuple[int, int]


def degrees(values: Sequence[float | str]) -> tuple[float, ...]:
  """Angles; raises `UserError` on what is none."""
  turned = []
  for value in values:
    try:
      angle = float(value)
    except ValueError:
      angle = math.nan
    if not abs(angle) <= _MAX_DEGREES:
      raise UserError(
        f'{argument("rotations", value)} must be degrees, e.g. 0,15,90; at most '
        f'{_MAX_DEGREES:g}.'
      )
    turned.append(angle)
  return tuple(turned)


def pairs(values: Sequence[Pair | str]) -> tuple[Pair, ...]:
  """Pairs of labels, also written 1-7; raises `UserError` on what is none."""
  swaps = []
  for value in values:
    labels = value.split('-') if isinstance(value, str) else [str(v) for v in value]
    if len(labels) != 2 or not all(v.isdecimal() and len(v) < 8 for v in labels):
      raise UserError(
        f'{argument("label_swaps", value)} must be two labels, e.g. 1-7 of 1-7,3-5.'
      )
    a, b = map(int, labels)
    swaps.append((min(a, b), max(a, b)))
  return tuple(swaps)


def rounds(values: Sequence[int | str]) -> tuple[int, ...]:
  """Numbers of rounds after the first; raises `UserError` on what is none."""
  numbers: list[int] = []
  for value in values:
    text = str(value)
    if not (text.isdecimal() and len(text) < 10 and int(text) > max([1, *numbers])):
      raise UserError(
        f'{argument("drift_rounds", ",".join(map(str, values)))} must be rounds from 2 '
        'on, each later than the one before, e.g. 10,20.'
      )
    numbers.append(int(text))
  return tuple(numbers)


def text_of(value: float | str | Pair) -> str:
  """A value as a flag writes it."""
  if isinstance(value, tuple):
    return f'{value[0]}-{value[1]}'
  return value if isinstance(value, str) else f'{value:g}'
