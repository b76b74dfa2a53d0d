"""Entries of a user's own file beside its examples: classes, scale, task, names."""

from collections.abc import Mapping

import numpy as np

from fesem_jax.core.federated_data import scale_of
from fesem_jax.data import columns
from fesem_jax.tasks import CLASSIFICATION, TASKS
from fesem_jax.utils.errors import UserError


def class_names(arrays: Mapping[str, np.ndarray]) -> tuple[str, ...] | None:
  """Names of the classes, if there is such an array."""
  if 'class_names' not in arrays:
    return None
  return tuple(columns.decoded(arrays['class_names']).tolist())


def feature_names(arrays: Mapping[str, np.ndarray]) -> tuple[str, ...] | None:
  """Names of the columns of x, if there is such an array."""
  if 'feature_names' not in arrays:
    return None
  names = arrays['feature_names']
  return tuple(map(str, names.tolist()))


def scale(path: object, arrays: Mapping[str, np.ndarray], x: np.ndarray) -> float:
  """Factor of the x that models see; raises `UserError` on no positive float32."""
  if 'scale' not in arrays:
    return scale_of(x, f'{path}: x')
  return float(arrays['scale'].reshape(()))


def num_classes(arrays: Mapping[str, np.ndarray]) -> int | None:
  """L, if the file says it."""
  if 'num_classes' not in arrays:
    return None
  return int(arrays['num_classes'])


def task(path: object, arrays: Mapping[str, np.ndarray], flag: str) -> str:
  """The task of a user's data: as asked for, as they say, or classification."""
  if 'task' not in arrays:
    return flag or CLASSIFICATION.name
  stored = arrays['task'].astype(str)
  if stored.shape != () or stored.item() not in TASKS:
    raise UserError(f'{path}: task must be one of {", ".join(TASKS)}.')
  return str(stored.item())
