"""Wages of 545 young men over eight years, each a client: a regression."""

import bz2
import csv
import importlib.metadata
import io
import pathlib

import numpy as np

from fesem_jax.data.pool import Pool
from fesem_jax.tasks import REGRESSION
from fesem_jax.utils.safe_files import reading

_PACKAGE, _FILE = 'linearmodels', 'datasets/wage_panel/wage_panel.csv.bz2'
_CLIENT, _TARGET = 'nr', 'lwage'
_FEATURES = (
  'year', 'black', 'exper', 'hisp', 'hours', 'married', 'educ', 'union', 'expersq',
)  # fmt: skip
_MOST = 2**24  # Bytes of the text.


def load() -> Pool:
  """The panel of Vella and Verbeek (1998) that the package linearmodels ships.

  Features x are [4360, 9], and the target y [4360, 1] is the logarithm of the hourly
  wage; both are float32, standardized over all examples. Men are clients, with eight
  years each. Raises `UserError` if linearmodels is not installed, or its file is
  damaged.
  """
  package = importlib.metadata.distribution(_PACKAGE)
  return read(pathlib.Path(str(package.locate_file(f'{_PACKAGE}/{_FILE}'))))


def read(path: pathlib.Path) -> Pool:
  """Reads the file of the panel; see `load`."""
  with reading(path):
    with bz2.open(path) as file:
      text = file.read(_MOST).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    names = np.array([row[_CLIENT] for row in rows])
    x = np.array([[float(row[name]) for name in _FEATURES] for row in rows])
    y = np.array([[float(row[_TARGET])] for row in rows])
  clients, client = np.unique(names, return_inverse=True)
  x, y = (
    ((a - a.mean(axis=0)) / np.maximum(a.std(axis=0), 1e-12)).astype(np.float32)
    for a in (x, y)
  )
  return Pool(x, y, 1, 1.0, client=client, names=clients, task=REGRESSION.name)
