"""Every client in every recorded round: `history.parquet`.

While a run goes on, each recorded round is a file of its own, history/ROUND.npz. At the
end they become one file, round by round, so that no more than one round is in memory:
about 25 bytes a client.
"""

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fesem_jax.run.results.client_table import position_of
from fesem_jax.utils import atomic_files
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading

# Column -> dtype; what is not known is NaN, or -1 where numbers are whole.
COLUMNS: Mapping[str, Any] = {
  'round': np.int32,
  'client': np.int32,
  'assignment': np.int32,
  'loss': np.float32,
  'deployed': np.float32,
  'finetuned': np.float32,
  'examples': np.int32,
  'steps': np.int32,
  'took_part': np.bool_,
  'failed': np.bool_,
}

_OWN = tuple(COLUMNS)[2:]  # Without the round and the client.

# Of a round: [M] each, clients in the order of their names.
Part = dict[str, np.ndarray]

_PARTS, _FILE = 'history', 'history.parquet'


def write_part(folder: pathlib.Path, number: int, part: Part) -> None:
  """Keeps a round until the run ends; its `COLUMNS` but round and client."""
  with contextlib.suppress(OSError):  # Writing says what is wrong.
    (folder / _PARTS).mkdir(exist_ok=True)
  typed = {name: np.asarray(x).astype(COLUMNS[name]) for name, x in part.items()}
  path = folder / _PARTS / f'{number}.npz'
  atomic_files.write_arrays_atomically(path, typed, compress=False)


def begin(folder: pathlib.Path, done: int) -> None:
  """Deletes the rounds that a resumed run does again.

  Raises `UserError` if an earlier file, to which the run's end adds, cannot be read.
  """
  _open(folder, names=np.array([]))
  for number in _parts(folder):
    if number > done:
      (folder / _PARTS / f'{number}.npz').unlink(missing_ok=True)


def _parts(folder: pathlib.Path) -> list[int]:
  names = (path.stem for path in (folder / _PARTS).glob('*.npz'))
  return sorted(int(name) for name in names if name.isdecimal())


def finish(folder: pathlib.Path, names: np.ndarray, since: int, done: int) -> None:
  """Makes one file of the rounds that are kept, and of an earlier file's.

  `names` [M] are those of the clients. `done` are the rounds of the run, of which
  `since` were done when it went on; what an earlier file has of later ones was done
  again.
  """
  new = [number for number in _parts(folder) if number <= done]
  old = _open(folder, names)
  if not new:
    return
  kept = [r for r in old.rounds if r <= since and r not in new] if old else []

  def parts() -> Iterator[tuple[int, Part]]:
    for number in sorted([*kept, *new]):
      if number in new:
        yield number, read_npz(folder / _PARTS / f'{number}.npz')
      elif old is not None:
        yield number, old.part(number)

  _write(folder / _FILE, names, parts())
  shutil.rmtree(folder / _PARTS, ignore_errors=True)


def _write(
  path: pathlib.Path, names: np.ndarray, parts: Iterator[tuple[int, Part]]
) -> None:
  """One row group a round; names are a dictionary, and the unknown is null.

  The file holds the names as they are: to look each up in a dictionary, of which none
  comes twice, would take 100 bytes a client.
  """
  import pyarrow
  from pyarrow import parquet

  texts = pyarrow.array(names.astype(str, copy=False))
  clients = pyarrow.DictionaryArray.from_arrays(
    np.arange(len(names), dtype=np.int32), texts
  )

  def table(number: int, part: Part) -> Any:
    columns: dict[str, Any] = {
      'round': np.full(len(names), number, np.int32),
      'client': clients,
    }
    for name in _OWN:
      x = part[name]
      lacks = np.isnan(x) if x.dtype.kind == 'f' else x == -1
      columns[name] = pyarrow.array(x, mask=lacks if x.dtype != bool else None)
    return pyarrow.table(columns)

  with atomic_files.replacing(path) as file, contextlib.ExitStack() as opened:
    writer = None
    for number, part in parts:
      rows = table(number, part)
      if writer is None:
        made_writer = parquet.ParquetWriter(
          file,
          rows.schema,
          write_page_checksum=True,
          use_dictionary=['round', *_OWN],
        )
        writer = opened.enter_context(made_writer)
      writer.write_table(rows, row_group_size=max(1, len(names)))


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedClients:
  """The history of every client in the recorded rounds, read on access.

  Columns, one row a client and round: `round`; `client`, its name; `assignment`, its
  cluster, -1 where there is none; `loss`, the mean of its examples as local training
  visited them; `deployed` and `finetuned`, the first figure of the task on its test
  examples; `examples` of training; `steps` that it took; whether it `took_part`, with
  an update that counted; and whether it `failed`, with one that was not finite. What
  is not known, such as figures of rounds that were not evaluated, is NaN; steps are -1
  where a method does not tell of its clients.

  Attributes:
    path: of the file.
    names: [M] of the clients.
    rounds: that are recorded, in order.
  """

  path: pathlib.Path
  names: np.ndarray
  rounds: list[int]

  def columns(
    self, rounds: Sequence[int] | None = None, names: Sequence[str] = tuple(COLUMNS)
  ) -> dict[str, np.ndarray]:
    """Columns by name, in order of rounds and clients.

    Args:
      rounds: to read; None is all of them.
      names: of the columns.

    Raises:
      UserError: on a round that is not recorded.
    """
    wanted = self.rounds if rounds is None else list(rounds)
    missing = set(wanted) - set(self.rounds)
    check(not missing, f'rounds: {min(missing, default=0)} is not recorded')
    return self._read([self.rounds.index(r) for r in wanted], names)

  def of(self, client: str) -> dict[str, np.ndarray]:
    """Columns of one client, by its name; a row a round."""
    own = [position_of(client, self.names)]
    each = [self._read([i], tuple(COLUMNS), own) for i in range(len(self.rounds))]
    return {name: np.concatenate([part[name] for part in each]) for name in COLUMNS}

  def to_pandas(self, rounds: Sequence[int] | None = None) -> Any:
    """The columns as a pandas `DataFrame`; see `columns`."""
    import pandas  # An optional dependency, and slow to import.

    return pandas.DataFrame(self.columns(rounds))

  def part(self, number: int) -> Part:
    """The columns of a recorded round, but the round and the client."""
    return self._read([self.rounds.index(number)], _OWN)

  def _read(
    self, places: list[int], columns: Sequence[str], rows: Any = slice(None)
  ) -> dict[str, Any]:
    """Some columns of some rounds, of all clients or of those at `rows`."""
    values: dict[str, Any] = {name: [np.zeros(0, COLUMNS[name])] for name in columns}
    # Pages are first looked at here, and what parsers raise is of all kinds.
    with reading(self.path), _opened(self.path) as file:
      for i in places:
        group = file.read_row_group(i, list(columns))
        for name, parts in values.items():
          parts.append(_values(name, group.column(name))[rows].astype(COLUMNS[name]))
      values = {name: np.concatenate(parts) for name, parts in values.items()}
      if 'client' in values:
        values['client'] = self.names[values['client']]
    return values


def _opened(path: pathlib.Path) -> Any:
  """A parquet file whose pages are compared with their checksums."""
  from pyarrow import parquet

  return parquet.ParquetFile(path, page_checksum_verification=True)


def _values(name: str, column: Any) -> np.ndarray:
  """A column of a row group: -1 or NaN in place of null."""
  if name == 'client':
    return column.combine_chunks().indices.to_numpy()
  lacking = np.nan if COLUMNS[name] is np.float32 else -1
  filled = column.fill_null(lacking) if column.null_count else column
  return filled.to_numpy()


def _open(
  folder: pathlib.Path, names: np.ndarray | None = None
) -> RecordedClients | None:
  """The history that a workdir holds; None where there is none.

  `names` [M] are those of the clients, where they are known or not needed; None reads
  them, which takes 200 bytes a client.
  """
  path = folder / _FILE
  if not path.exists():
    return None
  with reading(path), _opened(path) as file:
    rounds = [
      file.metadata.row_group(i).column(0).statistics.min
      for i in range(file.num_row_groups)
    ]
    if names is None:
      clients = file.read_row_group(0, ['client']).column('client')
      names = np.array(clients.combine_chunks().dictionary.to_pylist())
  return RecordedClients(path, names, rounds)


def read(folder: pathlib.Path) -> RecordedClients:
  """The history that the workdir of a finished run holds.

  Raises `UserError` if there is none, or it is damaged.
  """
  history = _open(folder)
  check(history, f'{folder}: has no {_FILE}; record it with client_metrics_every=1')
  assert history is not None
  return history
