"""Types and functions that readers of data sets share."""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.utils.errors import check

Arrays = dict[str, Any]  # Arguments of `from_arrays`.
Clients = dict[str, tuple[np.ndarray, np.ndarray]]  # x [N, ...], y [N, ...] by name.


class Request(NamedTuple):
  """The request to read a data set; `rng` and counts are for generated data."""

  data_dir: pathlib.Path
  rng: np.random.Generator  # Also of draws of users.
  num_clients: int = 100
  examples: int = 0  # Of each client; 0 lets the data set decide.
  task: str = ''  # What models are trained for; '' takes that of the data.


def find(request: Request, *places: str) -> pathlib.Path:
  """The first of some places below the data folder that exists."""
  paths = [request.data_dir / place for place in places]
  present = [path for path in paths if path.exists()]
  check(present, f'data_dir: {request.data_dir} has no {" or ".join(places)}')
  return present[0]


def join_clients(clients: Clients) -> Arrays:
  """Examples of clients one after the other, in the order of their names."""
  names = sorted(clients)
  x, y = (np.concatenate([clients[name][i] for name in names]) for i in range(2))
  sizes = [len(clients[name][1]) for name in names]
  return {'x': x, 'y': y, 'client': np.repeat(np.array(names, object), sizes)}


def both_splits(train: Arrays, test: Arrays) -> Arrays:
  """Training examples and, behind them, test examples."""
  columns = {name: np.concatenate([train[name], test[name]]) for name in train}
  return columns | {'split': np.repeat([0, 1], [len(train['y']), len(test['y'])])}


def to_bytes(pixels: np.ndarray) -> np.ndarray:
  """Pixels in [0, 1] as bytes, multiplied by 255."""
  if pixels.min(initial=0) < 0 or pixels.max(initial=1) > 1:
    raise ValueError('pixels must lie in [0, 1]')  # `reading` adds the file.
  return np.round(pixels * 255).astype(np.uint8)
