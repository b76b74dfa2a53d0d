"""The frame of a run's clients, one row each: `clients.csv`.

Columns: `client`, its name; training `examples`; `test_examples` that the metrics are
measured on; `true_cluster`, a number or name, where any is known; `cluster` that the
client deploys from, where there are clusters; `deployed_NAME` and `finetuned_NAME`
(float64) of each metric of the task and of the model, NaN without test examples;
`honest`, False for bad clients, where there are any; and columns of callbacks.
"""

import csv
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.evaluation.evaluate import Totals, client_figures
from fesem_jax.evaluation.fairness import fairness
from fesem_jax.tasks import Figure, Task
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import reading

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

FILE = 'clients.csv'
KINDS = ('deployed', 'finetuned')
_TEXTS = ['client', 'true_cluster']


def make(
  names: np.ndarray,
  sizes: np.ndarray,
  truth: np.ndarray | None,
  assignment: np.ndarray | None,
  deployed: Totals,
  finetuned: Totals,
  places: np.ndarray,
  task: Task,
  honest: np.ndarray | None = None,
) -> 'DataFrame':
  """The frame of [M] clients in the order of `places` in the totals."""
  import pandas

  is_number = truth is not None and np.asarray(truth).dtype.kind in 'iu'
  columns: dict[str, Any] = {
    'client': pandas.Series(as_text(names), dtype=object),
    'examples': np.asarray(sizes).astype(np.int64),
    'test_examples': np.asarray(deployed.examples)[places].astype(np.int64),
    'true_cluster': truth
    if truth is None
    else pandas.Series(truth, dtype=np.int64 if is_number else object),
    'cluster': None if assignment is None else np.asarray(assignment, np.int64),
  }
  for kind, totals in zip(KINDS, (deployed, finetuned), strict=True):
    for name, values in client_figures(totals, task).items():
      columns[f'{kind}_{name}'] = values[places]
  columns['honest'] = honest
  present = {name: column for name, column in columns.items() if column is not None}
  return pandas.DataFrame(present)


def as_text(names: np.ndarray) -> np.ndarray:
  """Names as strings, numbers no wider than the longest: NumPy gives them 21 places."""
  names = np.asarray(names)
  if names.dtype.kind not in 'iu' or not names.size:
    return names.astype(str)
  return names.astype(f'U{max(len(str(n)) for n in (names.min(), names.max()))}')


def position_of(client: Any, names: np.ndarray) -> int:
  """The position of a client among the names; `UserError` unless there is one."""
  places = np.flatnonzero(names == client)
  check(len(places) < 2, f'client: {len(places)} clients are called {client!r}')
  check(len(places), f'client: unknown name {client!r}; expected e.g. {names[:1]}')
  return int(places[0])


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


def fairness_of(clients: 'DataFrame', figure: Figure) -> dict[str, Any]:
  """`fairness` over honest clients, of the deployed and the fine-tuned models."""
  honest, higher = counted(clients), figure.higher_is_better
  return {
    kind: fairness(honest[f'{kind}_{figure.name}'].to_numpy(), higher) for kind in KINDS
  }


def write(folder: pathlib.Path, clients: 'DataFrame') -> None:
  """Writes `clients.csv`, numbers with all digits."""
  form: dict[str, Any] = {'encoding': 'utf-8', 'errors': 'backslashreplace'}
  form |= {'quoting': csv.QUOTE_NONNUMERIC, 'lineterminator': '\n'}
  with replacing(folder / FILE) as file:
    clients.to_csv(file, index=False, **form)


def read(folder: pathlib.Path) -> 'DataFrame | None':
  """The frame that a workdir holds; None where there is none."""
  path = folder / FILE
  if not path.exists():
    return None
  import pandas

  form: dict[str, Any] = {'keep_default_na': False, 'na_values': ['']}
  form |= {'dtype': dict.fromkeys(_TEXTS, object), 'float_precision': 'round_trip'}
  with reading(path):
    clients = pandas.read_csv(path, **form)
    for name in (name for name in _TEXTS if name in clients):
      clients[name] = clients[name].fillna('')
    truth = clients.get('true_cluster')
    if truth is not None and truth.str.fullmatch(r'0|-?[1-9]\d*').all():
      clients['true_cluster'] = truth.astype(np.int64)
    for name in clients.columns.difference(_TEXTS):
      check(clients[name].dtype.kind in 'bif', f'{path}: {name} must be numbers')
  return clients
