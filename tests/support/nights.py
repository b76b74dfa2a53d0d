"""Parameters of tests, of which the first are tried by day."""

from collections.abc import Iterable
from typing import Any

import pytest


def rest_by_night(rows: Iterable[Any], by_day: int = 1) -> list[Any]:
  """The rows for `parametrize`, of which `make test` tries the first `by_day`.

  A tuple has the values of several arguments.
  """
  return [
    pytest.param(
      *(row if type(row) is tuple else (row,)),
      marks=[pytest.mark.nightly] * (i >= by_day),
    )
    for i, row in enumerate(rows)
  ]
