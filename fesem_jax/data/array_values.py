"""Entries of a user's own file beside its examples: classes, scale, task, names."""

from collections.abc import Mapping

import numpy as np

from fesem_jax.core.federated_data import scale_of
from fesem_jax.data import columns
from fesem_jax.tasks import CLASSIFICATION, TASKS
from fesem_jax.utils import array_checks
from fesem_jax.utils.errors import UserError, argument


def as_array(path: object, name: str, value: object) -> np.ndarray:
  """An array of a file or argument `path`; raises `UserError` if it is none."""
  if np.ma.is_masked(value):
    raise UserError(
      f'{path}: {name} is a masked array, whose mask would be lost; remove the masked '
      'rows or fill them.'
    )
  try:
    return np.asarray(value)
  except ValueError as e:
    raise UserError(f'{path}: {name} has rows of different shapes.') from e


def class_names(
  path: object, arrays: Mapping[str, np.ndarray]
) -> tuple[str, ...] | None:
  """Names of the classes, if there is such an array; raises `UserError` on others."""
  if 'class_names' not in arrays:
    return None
  value = columns.decoded(arrays['class_names'], f'{path}: class_names')
  names = value.tolist()
  if value.ndim != 1 or not all(isinstance(name, str) for name in names):
    raise UserError(f'{path}: class_names must be strings, one for each class.')
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise UserError(
      f'{path}: class_names has {twice!r} twice; give each class its own name.'
    )
  return tuple(names)


def feature_names(
  path: object, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> tuple[str, ...] | None:
  """Names of the columns of x, of `shape`; raises `UserError` unless they fit."""
  if 'feature_names' not in arrays:
    return None
  names = arrays['feature_names']
  if names.shape != shape[1:]:
    raise UserError(
      f'{path}: feature_names has shape {names.shape}, an example {shape[1:]}; name '
      'each column of x, or leave the array out.'
    )
  return tuple(map(str, names.tolist()))


def scale(path: object, arrays: Mapping[str, np.ndarray], x: np.ndarray) -> float:
  """Factor of the x that models see; raises `UserError` on no positive float32."""
  if 'scale' not in arrays:
    return scale_of(x, f'{path}: x')
  given, single = arrays['scale'], np.finfo(np.float32)
  if given.size != 1 or given.dtype.kind not in 'biuf':
    raise UserError(f'{path}: scale must be one number, e.g. {1 / 255:.6f} for pixels.')
  number = float(given.reshape(()))
  if not float(single.tiny) <= number <= float(single.max):
    raise UserError(f'{path}: scale {number} must be positive, and a 32-bit float.')
  return number


def num_classes(path: object, arrays: Mapping[str, np.ndarray]) -> int | None:
  """L, if the file says it; raises `UserError` on no number of classes."""
  if 'num_classes' not in arrays:
    return None
  value = arrays['num_classes']
  if value.shape != () or value.dtype.kind not in 'iuf':
    raise UserError(f'{path}: num_classes must be one number.')
  if not 1 <= value <= array_checks.MAX_CLASSES or value != np.round(value):
    raise UserError(
      f'{path}: num_classes is {value}; a whole number from 1 to '
      f'{array_checks.MAX_CLASSES} is needed.'
    )
  return int(value)


def task(path: object, arrays: Mapping[str, np.ndarray], flag: str) -> str:
  """The task of a user's data: as asked for, as they say, or classification."""
  if 'task' not in arrays:
    return flag or CLASSIFICATION.name
  stored = arrays['task'].astype(str)
  if stored.shape != () or stored.item() not in TASKS:
    raise UserError(f'{path}: task must be one of {", ".join(TASKS)}.')
  if flag and flag != stored.item():
    raise UserError(
      f'{argument("task", flag)} contradicts {path}, whose task is {stored.item()}; '
      'leave it out.'
    )
  return str(stored.item())
