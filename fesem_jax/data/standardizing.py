"""Columns of tables with mean 0 and standard deviation 1."""

import dataclasses

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import SEQUENCE
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.stored_rows import read


def check(pool: Pool, named: str) -> None:
  """Raises `UserError` unless examples are rows of numbers."""
  tokens = pool.is_text or pool.are_tokens or pool.task == SEQUENCE.name
  if tokens or pool.x.dtype == np.uint8 or pool.x.ndim != 2:
    raise UserError(
      f'`standardize` is for columns of numbers, which {named} does not hold; leave it '
      'out.'
    )


def standardized(
  train: FederatedData, test: FederatedData
) -> tuple[FederatedData, FederatedData]:
  """Subtracts the mean of each column and divides by its standard deviation.

  Both are of the training examples of all clients together, which a federation would
  find by a sum that clients share. Columns of zeros and ones and constant ones stay.
  """
  x = np.asarray(read(train.x), np.float64) * train.scale
  mean, deviation = x.mean(axis=0), x.std(axis=0)
  stay = ((x == 0) | (x == 1)).all(axis=0) | (deviation == 0)
  mean, deviation = np.where(stay, 0, mean), np.where(stay, 1, deviation)

  def of(split: FederatedData) -> FederatedData:
    x = np.asarray(read(split.x), np.float64) * split.scale
    changed = ((x - mean) / deviation).astype(np.float32)
    info = dataclasses.replace(split.info, standardized=True)
    return dataclasses.replace(split, x=changed, scale=1.0, info=info)

  return of(train), of(test)
