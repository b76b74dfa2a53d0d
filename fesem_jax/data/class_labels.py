"""Labels of a classification in the forms that files have them in."""

from typing import Any

import numpy as np

from fesem_jax.utils.errors import UserError


def as_numbers(
  y: Any, where: str, num_classes: int | None = None
) -> tuple[np.ndarray, int | None, tuple[str, ...] | None]:
  """Turns names, one-hot rows and a column [N, 1] into labels [N].

  `where` is the file or argument of y for errors, `num_classes` is L if known. Returns
  the labels, L if y or `num_classes` tells it, and the names of the classes if y holds
  names, which are then in alphabetical order. Everything else is returned as it is, for
  `array_checks.labels`. Raises `UserError` on a missing name, or if there are other
  than L names or columns.
  """
  y = np.asarray(y)
  if y.ndim == 2 and y.shape[1] == 1:
    y = y[:, 0]
  if y.dtype.kind in 'OSU' and y.ndim == 1 and len(y):
    return _named(y, where, num_classes)
  if y.ndim != 2 or y.dtype.kind not in 'biuf' or not y.size:
    return y, num_classes, None
  if not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all()):
    return y, num_classes, None
  _check_count(where, f'{y.shape[1]} columns', y.shape[1], num_classes)
  return y.argmax(axis=1), y.shape[1], None


def _named(
  y: np.ndarray, where: str, num_classes: int | None
) -> tuple[np.ndarray, int | None, tuple[str, ...] | None]:
  if y.dtype.kind == 'O':
    strange = [i for i, v in enumerate(y) if not isinstance(v, str)]
    if len(strange) == len(y):  # No names at all.
      return y, num_classes, None
    if strange:
      raise UserError(
        f'{where} of row {strange[0]} is {y[strange[0]]!r}; give every row the name of '
        'its class.'
      )
  values = np.char.decode(y, 'utf-8') if y.dtype.kind == 'S' else y.astype(str)
  if (values == '').any():
    raise UserError(
      f'{where} of row {np.flatnonzero(values == "")[0]} is empty; give every row the '
      'name of its class.'
    )
  names, labels = np.unique(values, return_inverse=True)
  _check_count(where, f'{len(names)} names', len(names), num_classes)
  return labels, len(names), tuple(names.tolist())


def _check_count(where: str, what: str, count: int, num_classes: int | None) -> None:
  if num_classes not in (None, count):
    raise UserError(
      f'{where} has {what} of classes, but num_classes is {num_classes}; leave it out.'
    )
