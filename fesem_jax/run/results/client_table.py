"""The table of clients, one line each: `clients.csv`."""

import csv
import io
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.evaluation.evaluate import Totals, client_figures
from fesem_jax.evaluation.fairness import fairness
from fesem_jax.tasks import Figure, Task
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import check
from fesem_jax.utils.text_tables import aligned, html

FILE = 'clients.csv'
_BLOCK = 2**14  # Clients that are written at once.

# Fields of figures that most tasks have.
FIGURES = (
  'deployed_accuracy', 'deployed_f1', 'finetuned_accuracy', 'finetuned_f1',
)  # fmt: skip


# What the names of figures begin with.
KINDS = ('deployed_', 'finetuned_')


class ClientTable(NamedTuple):
  """Figures of each client at the end of a run, in the order of the user's data.

  `print` shows the first and the last clients, one line each. The loss on a client's
  own training examples is not among the figures: it would take another pass over all
  training data.

  Attributes:
    names: [M] strings.
    examples: [M] int training examples.
    test_examples: [M] int examples that the figures below are measured on.
    true_cluster: [M] int or names, or None where none is known.
    cluster: [M] int cluster that the client deploys from, or None without clusters.
    deployed_accuracy: [M] float64 in [0, 1] of the deployed model, NaN for clients
      without test examples, as all that follow; of sequences, by token. None, and no
      column of the file, where the task has no such figure, like those that follow.
    deployed_f1: [M] float64; see `tasks.classification`.
    finetuned_accuracy: [M] float64 after fine-tuning.
    finetuned_f1: [M] float64 after fine-tuning.
    honest: [M] bool, False for bad clients (`data.attacks`); None, and no
      column of the file, where all are honest.
    metrics: 'deployed_NAME' and 'finetuned_NAME' -> [M] float64, the other figures of
      the task, such as 'rmse', and the mean over the client's test examples of each of
      the model's own metrics (`Model.metrics`); None, and no columns of the file, where
      there are none.
    added: name -> [M] int64 or float64, what callbacks measured
      (`Callback.client_columns`), NaN where it is unknown; None, and no columns of the
      file, where there is nothing.
  """

  names: np.ndarray
  examples: np.ndarray
  test_examples: np.ndarray
  true_cluster: np.ndarray | None
  cluster: np.ndarray | None
  deployed_accuracy: np.ndarray | None = None
  deployed_f1: np.ndarray | None = None
  finetuned_accuracy: np.ndarray | None = None
  finetuned_f1: np.ndarray | None = None
  honest: np.ndarray | None = None
  metrics: dict[str, np.ndarray] | None = None
  added: dict[str, np.ndarray] | None = None

  @property
  def counted(self) -> np.ndarray:
    """[M] bool, False for bad clients, whom figures over clients leave out."""
    return np.ones(len(self.names), bool) if self.honest is None else self.honest

  def columns(self) -> dict[str, np.ndarray | None]:
    """Every column by its name; None for the unknown.

    The model's own metrics come after those of all tables, and what callbacks added
    last.
    """
    columns = self._asdict()
    for name in ('metrics', 'added', *(f for f in FIGURES if columns[f] is None)):
      del columns[name]
    return columns | (self.metrics or {}) | (self.added or {})

  def with_columns(
    self, columns: Mapping[str, np.ndarray], source: str
  ) -> 'ClientTable':
    """The table with further columns.

    Args:
      columns: name -> [M] numbers.
      source: what gives them, for errors.

    Raises:
      UserError: on a name that is taken or looks like a figure's, or on no M numbers.
    """
    added = dict(self.added or {})
    for name, values in columns.items():
      taken = name in {**self.columns(), **added} or name.startswith(KINDS)
      check(not taken, f'{source}: column {name!r} is taken; choose another name')
      column = np.asarray(values)
      is_numeric = column.dtype.kind in 'iuf' and column.shape == self.names.shape
      check(is_numeric, f'{source}: column {name!r} must hold a number for each client')
      is_integer = column.dtype.kind in 'iu'
      added[name] = column.astype(np.int64 if is_integer else np.float64)
    return self._replace(added=added or None)

  def to_pandas(self) -> Any:
    """The table as a pandas `DataFrame` of the columns that are known, M rows."""
    import pandas  # An optional dependency, and slow to import.

    known = {name: x for name, x in self.columns().items() if x is not None}
    return pandas.DataFrame(known)

  def __repr__(self) -> str:
    return table_text(self.columns())

  def _repr_html_(self) -> str:
    rows, _, count = _shown(self.columns())
    return f'{html(rows)}<p>{count} clients</p>'

  def of(self, client: str) -> dict[str, Any]:
    """The line of a client, by its name; None for what is not known.

    Raises:
      UserError: if no client, or more than one, has that name.
    """
    i = position_of(client, self.names)
    columns = self.columns().items()
    return {name: None if x is None else x[i].item() for name, x in columns}

  def assignment(self) -> dict[str, int] | None:
    """Cluster of each client by its name; None without clusters."""
    if self.cluster is None:
      return None
    return dict(zip(self.names.tolist(), self.cluster.tolist(), strict=True))


def as_text(names: np.ndarray) -> np.ndarray:
  """Names as strings, numbers no wider than the longest: NumPy gives them 21 places."""
  names = np.asarray(names)
  if names.dtype.kind not in 'iu' or not names.size:
    return names.astype(str)
  return names.astype(f'U{max(len(str(n)) for n in (names.min(), names.max()))}')


def position_of(client: Any, names: np.ndarray) -> int:
  """The place of a client among the names; raises `UserError` unless there is one."""
  places = np.flatnonzero(names == client)
  check(len(places) < 2, f'client: {len(places)} clients are called {client!r}')
  check(len(places), f'client: unknown name {client!r}; expected e.g. {names[:1]}')
  return int(places[0])


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
) -> ClientTable:
  """The table from what was measured, [M] each in the order of the user's data.

  `places` is where each client is in the totals, which are as arranged.
  """
  tuned = client_figures(finetuned, task)
  metrics: dict[str, np.ndarray] = {}
  for name, own in client_figures(deployed, task).items():
    metrics[f'deployed_{name}'] = own[places]
    metrics[f'finetuned_{name}'] = tuned[name][places]
  figures: dict[str, Any] = {name: metrics.pop(name, None) for name in FIGURES}
  return ClientTable(
    names=as_text(names),
    examples=np.asarray(sizes).astype(np.int64),
    test_examples=np.asarray(deployed.examples)[places].astype(np.int64),
    true_cluster=truth,
    cluster=assignment,
    **figures,
    honest=honest,
    metrics=metrics or None,
  )


def fairness_of(table: ClientTable, figure: Figure) -> dict[str, Any]:
  """`fairness` of a figure over clients, of the deployed and the fine-tuned models.

  Bad clients do not count.
  """
  columns = table.columns()
  kept = table.counted
  return {
    kind: fairness(
      np.asarray(columns[f'{kind}_{figure.name}'])[kept], figure.higher_is_better
    )
    for kind in ('deployed', 'finetuned')
  }


def write(folder: pathlib.Path, table: ClientTable) -> None:
  """Writes the table as `clients.csv`; raises `UserError` if it cannot.

  Numbers keep all their digits; what is not known is left empty. Names that are no
  valid text are written with backslashes.
  """
  with replacing(folder / FILE) as file:
    for block in _encoded(table):
      file.write(block)


def _encoded(table: ClientTable) -> Iterator[bytes]:
  """The file of a table, some clients at a time."""
  for block in _blocks(table):
    out = io.StringIO()
    # Only a name in quotes may hold a carriage return.
    lines = csv.writer(out, lineterminator='\n', quoting=csv.QUOTE_NONNUMERIC)
    lines.writerows(block)
    yield out.getvalue().encode(errors='backslashreplace')


def _blocks(table: ClientTable) -> Iterator[list[list[Any]]]:
  """The lines of the file, some clients at a time; first the names of the columns."""
  held = table.columns()
  if table.honest is None:
    del held['honest']
  else:
    held['honest'] = table.honest.astype(int)
  yield [list(held)]
  for first in range(0, len(table.names), _BLOCK):
    rows = slice(first, first + _BLOCK)
    count = len(table.names[rows])
    columns = [[None] * count if x is None else x[rows].tolist() for x in held.values()]
    yield [
      ['' if x is None or x != x else x for x in line]
      for line in zip(*columns, strict=True)
    ]


_ENDS = 5  # Lines that are shown of the beginning of a long table, and of its end.
_WIDTH = 24  # Of a name.


def table_text(columns: Mapping[str, np.ndarray | None]) -> str:
  """Columns of one line a client as text; of long tables, the first and last lines.

  `columns` is name -> [M], the clients' names first; those that are None are left out.
  """
  rows, left, count = _shown(columns)
  return '\n'.join([*aligned(rows, left), f'[{count} clients]'])


def _shown(
  columns: Mapping[str, np.ndarray | None],
) -> tuple[list[list[str]], list[int], int]:
  """Cells that are shown, the head first; columns of texts; the number of clients."""
  known = {name: np.asarray(x) for name, x in columns.items() if x is not None}
  count = len(next(iter(known.values())))
  cut = count > 2 * _ENDS + 1
  rows = [*range(_ENDS), *range(count - _ENDS, count)] if cut else range(count)
  lines = [
    [printable(n) for n in known],
    *([_cell(x[i]) for x in known.values()] for i in rows),
  ]
  if cut:
    lines.insert(1 + _ENDS, ['...'] * len(known))
  left = [i for i, x in enumerate(known.values()) if x.dtype.kind not in 'iufb']
  return lines, left, count


def _cell(value: Any) -> str:
  if isinstance(value, np.floating):
    if np.isnan(value):
      return '-'
    return f'{value:.4f}' if value == 0 or 1e-3 <= abs(value) < 1e6 else f'{value:.3e}'
  return printable(value, _WIDTH)
