"""Tables of clients as aligned text, for a terminal."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fesem_jax.utils.display import printable
from fesem_jax.utils.text_tables import aligned

_ENDS = 5  # Lines that are shown of the beginning of a long table, and of its end.
_WIDTH = 24  # Of a name.


def table_text(columns: Mapping[str, np.ndarray | None]) -> str:
  """Columns of one line a client as text; of long tables, the first and last lines.

  `columns` is name -> [M], the clients' names first; those that are None are left out.
  """
  known = {name: np.asarray(x) for name, x in columns.items() if x is not None}
  count = len(next(iter(known.values())))
  cut = count > 2 * _ENDS + 1
  rows = [*range(_ENDS), *range(count - _ENDS, count)] if cut else range(count)
  lines = [
    [printable(n) for n in known],
    *([_cell(x[i]) for x in known.values()] for i in rows),
  ]
  if cut:
    lines.insert(1 + _ENDS, ['...'] * len(known))
  left = [i for i, x in enumerate(known.values()) if x.dtype.kind not in 'iufb']
  return '\n'.join([*aligned(lines, left), f'[{count} clients]'])


def _cell(value: Any) -> str:
  if isinstance(value, np.floating):
    if np.isnan(value):
      return '-'
    return f'{value:.4f}' if value == 0 or 1e-3 <= abs(value) < 1e6 else f'{value:.3e}'
  return printable(value, _WIDTH)
