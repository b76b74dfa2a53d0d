"""Stub until the named sources of branch dataB are merged: digits alone."""

from typing import Any

from fesem_jax.data.pool import Pool, from_arrays

SOURCES: dict[str, Any] = {'digits': None}


def read(dataset: str, data_dir: Any = '', *, task: str = '', **options: Any) -> Pool:
  """The digits of scikit-learn."""
  from sklearn.datasets import load_digits

  digits = load_digits()
  images = digits.images.astype('uint8')
  return from_arrays(images, digits.target, scale=1 / 16, task=task, num_classes=10)
