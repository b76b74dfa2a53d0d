"""The frame of a run's clients, one row each: `clients.csv`.

Columns: the name `client`; training `examples`; `test_examples`; where they exist,
`true_cluster`, a number or name, `cluster`, and `honest`, False for bad clients;
`deployed_NAME` and `finetuned_NAME` of each metric, NaN without test examples.
"""

import csv
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.attacks import honest
from fesem_jax.evaluation.evaluate import client_metrics
from fesem_jax.evaluation.fairness import fairness
from fesem_jax.tasks import Metric, Task
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import reading

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

FILE = 'clients.csv'
KINDS = ('deployed', 'finetuned')


def make(
  measured: Any, train: FederatedData, places: np.ndarray, task: Task
) -> 'DataFrame':
  """The frame of [M] clients, whose `places` are their rows in `train` as arranged."""
  import pandas

  names, truth, good = train.info.names, train.info.clusters, honest(train)
  columns: dict[str, Any] = {
    'client': pandas.Series(np.asarray(names[places]).astype(str), dtype=object),
    'examples': np.asarray(train.sizes())[places].astype(np.int64),
    'test_examples': np.asarray(measured.deployed.examples)[places].astype(np.int64),
  }
  if truth is not None:
    dtype: Any = np.int64 if np.asarray(truth).dtype.kind in 'iu' else object
    columns['true_cluster'] = pandas.Series(truth[places], dtype=dtype)
  if measured.assignment is not None:
    columns['cluster'] = np.asarray(measured.assignment[places], np.int64)
  for kind in KINDS:
    for name, values in client_metrics(getattr(measured, kind), task).items():
      columns[f'{kind}_{name}'] = values[places]
  if good is not None:
    columns['honest'] = good[places]
  return pandas.DataFrame(columns)


def with_columns(
  clients: 'DataFrame', columns: Mapping[str, np.ndarray], source: str
) -> 'DataFrame':
  """The frame with columns of [M] numbers, which `source` names in errors."""
  for name, values in columns.items():
    taken = name in clients or name.partition('_')[0] in KINDS
    check(not taken, f'{source}: column {name!r} is taken; choose another name')
    column = np.asarray(values)
    is_numeric = column.dtype.kind in 'iuf' and column.shape == (len(clients),)
    check(is_numeric, f'{source}: column {name!r} must hold a number for each client')
    dtype = np.float64 if column.dtype.kind == 'f' else np.int64
    clients = clients.assign(**{name: column.astype(dtype)})
  return clients


def counted(clients: 'DataFrame') -> 'DataFrame':
  """The honest clients."""
  return clients[clients['honest'].ne(0)] if 'honest' in clients else clients


def fairness_of(clients: 'DataFrame', metric: Metric) -> dict[str, Any]:
  """`fairness` over honest clients, of the deployed and the fine-tuned models."""
  values = {kind: counted(clients)[f'{kind}_{metric.name}'] for kind in KINDS}
  higher = metric.higher_is_better
  return {kind: fairness(x.to_numpy(), higher) for kind, x in values.items()}


def write(folder: pathlib.Path, clients: 'DataFrame') -> None:
  """Writes `clients.csv`, numbers with all digits."""
  with replacing(folder / FILE) as file:
    clients.to_csv(
      file, index=False, encoding='utf-8', errors='backslashreplace',
      quoting=csv.QUOTE_NONNUMERIC, lineterminator='\n',
    )  # fmt: skip


def read(folder: pathlib.Path) -> 'DataFrame | None':
  """The frame that a workdir holds; None where there is none."""
  path = folder / FILE
  if not path.exists():
    return None
  import pandas

  with reading(path):  # Texts first: older pandas rounds floats.
    clients = pandas.read_csv(path, dtype=object, keep_default_na=False)
    for name in clients.columns.drop('client'):
      column = clients[name]
      if column.str.fullmatch(r'0|-?[1-9]\d*').all():
        clients[name] = column.astype(np.int64)
      elif set(column) <= {'True', 'False'}:
        clients[name] = column == 'True'
      elif name != 'true_cluster':
        clients[name] = column.replace('', 'nan').astype(np.float64)
  return clients
