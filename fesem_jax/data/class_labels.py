"""Labels of a classification in the forms that files have them in."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.data import columns
from fesem_jax.utils.errors import UserError


def as_numbers(
  y: Any,
  where: str,
  num_classes: int | None = None,
  class_names: Sequence[str] | None = None,
) -> tuple[np.ndarray, int | None, tuple[str, ...] | None]:
  """Turns names, one-hot rows and a column [N, 1] into labels [N].

  `where` is the file or argument of y for errors, `num_classes` is L if known, and
  `class_names` are those of classes 0, 1, ... if known. Returns the labels, L if y or
  `num_classes` tells it, and the names of the classes if y holds names, which are then
  in the order of `class_names`, or else alphabetical, or of their numbers. Everything
  else is returned as it is, for `array_checks.labels`. Raises `UserError` on a missing
  or unknown name, or if there are other than L names or columns.
  """
  y = np.asarray(y)
  if y.ndim == 2 and y.shape[1] == 1:
    y = y[:, 0]
  if y.dtype.kind in 'OSU' and y.ndim == 1 and len(y):
    return _named(y, where, num_classes, class_names)
  if y.ndim != 2 or y.dtype.kind not in 'biuf' or not y.size:
    return y, num_classes, None
  if not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all()):
    return y, num_classes, None
  return y.argmax(axis=1), y.shape[1], None


def _named(
  y: np.ndarray,
  where: str,
  num_classes: int | None,
  class_names: Sequence[str] | None,
) -> tuple[np.ndarray, int | None, tuple[str, ...] | None]:
  mend = 'give every row the name of its class'
  if y.dtype.kind == 'O':
    strange = [i for i, v in enumerate(y) if not isinstance(v, str | bytes)]
    if len(strange) == len(y):  # No names at all.
      return y, num_classes, None
    if strange:
      raise UserError(f'{where} of row {strange[0]} is {y[strange[0]]!r}; {mend}.')
  if class_names is None:
    mend += '; if that is a name, give class_names'
  kinds, _, labels = columns.numbered(y, where, mend, class_names or (), True)
  names = tuple(kinds.tolist()) if class_names is None else tuple(class_names)
  if class_names is not None:
    labels = np.array([names.index(name) for name in kinds.tolist()])[labels]
  return labels, len(names), names
