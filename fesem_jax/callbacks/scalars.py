"""The numbers of a record, for loggers."""

from collections.abc import Iterator
from typing import Any


def scalars(value: Any, prefix: str = '') -> Iterator[tuple[str, float]]:
  """Every number of a nested record except the round, as ('deployed/micro_f1', 0.9).

  Args:
    value: a record, or a value in it.
    prefix: path of the value.
  """
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from scalars(inner, f'{prefix}/{key}' if prefix else key)
  elif isinstance(value, list):
    for i, inner in enumerate(value):
      yield from scalars(inner, f'{prefix}/{i}')
  elif isinstance(value, int | float) and prefix != 'round':
    yield prefix, value
