"""Every client in every recorded round: `history.parquet`.

A folder of one Parquet file a round, which `pandas.read_parquet` reads as one; about 25
bytes a client and round.
"""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.utils import atomic_files
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import reading

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

# Column -> dtype; what is not known is NaN, or -1 where numbers are whole.
COLUMNS: Mapping[str, Any] = {
  'round': np.int32,
  'client': str,
  'assignment': np.int32,
  'loss': np.float32,
  'deployed': np.float32,
  'finetuned': np.float32,
  'examples': np.int32,
  'steps': np.int32,
  'took_part': np.bool_,
  'failed': np.bool_,
}

# Of a round: [M] each, clients in the order of their names.
Part = dict[str, np.ndarray]

_FOLDER = 'history.parquet'


def begin(folder: pathlib.Path, done: int) -> None:
  """Deletes the rounds after the first `done`, which a resumed run repeats."""
  (folder / _FOLDER).mkdir(exist_ok=True)
  for path in (folder / _FOLDER).glob('*.parquet'):
    if path.stem.isdecimal() and int(path.stem) > done:
      path.unlink(missing_ok=True)


def write_part(
  folder: pathlib.Path, number: int, names: np.ndarray, part: Part
) -> None:
  """Writes a round; `part` has its `COLUMNS` but round and client."""
  import pyarrow
  from pyarrow import parquet

  columns: dict[str, Any] = {
    'round': np.full(len(names), number, np.int32),
    'client': pyarrow.array(names.astype(str, copy=False)),
  }
  typed = {name: np.asarray(x).astype(COLUMNS[name]) for name, x in part.items()}
  rows = pyarrow.table(columns | typed)
  with atomic_files.replacing(folder / _FOLDER / f'{number:06}.parquet') as file:
    parquet.write_table(rows, file, write_page_checksum=True)


def read(folder: pathlib.Path) -> 'DataFrame':
  """Every client in the recorded rounds of a workdir, in order of rounds and clients.

  Columns: `round`; `client`, its name; `assignment`, its cluster, -1 where there is
  none; `loss`, the mean of its examples as local training visited them; `deployed` and
  `finetuned`, the first metric of the task on its test examples, NaN in rounds without
  evaluation; `examples` of training; `steps` that it took, -1 where a method does not
  tell; whether it `took_part`, with an update that counted; and whether it `failed`,
  with one that was not finite.

  Raises `UserError` if there is none, or it is damaged.
  """
  import pandas
  from pyarrow import parquet

  paths = sorted((folder / _FOLDER).glob('*.parquet'))
  check(paths, f'{folder}: has no {_FOLDER}; record it with client_metrics_every=1')
  rounds = []
  for path in paths:
    with reading(path):
      table = parquet.read_table(path, page_checksum_verification=True)
      rounds.append(table.to_pandas())
  return pandas.concat(rounds, ignore_index=True)
