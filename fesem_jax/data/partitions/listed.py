"""Partitions that the data or a list of rows determine."""

import csv
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.data.partitions.partition import (
  Partition,
  by_shares,
  rows_of,
  shares_of,
  split_each,
)
from fesem_jax.utils import array_pickles, ranges
from fesem_jax.utils.errors import check
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.safe_files import opened, reading

if TYPE_CHECKING:
  from fesem_jax.data.pool import Pool

Lists = list[np.ndarray]  # Row numbers of each client.

# FedML's and NIID-Bench's net_dataidx_map.txt: `0: [`, numbers, `]` of each client.
_LISTED = re.compile(r'(\w+)\s*:\s*\[([^\[\]]*)\]')

# FedScale's, and that of TensorFlow Federated's Landmarks.
_CLIENT_COLUMNS = ('client_id', 'user_id')


class Natural(Partition):
  """The clients that the data have.

  Attributes:
    min_examples: leaves out clients with fewer training and test examples together.
  """

  layer: ClassVar[int] = 9

  min_examples: ranges.Index = 0

  def splits(
    self, pool: 'Pool', seed: int, num_clients: int, examples: int, last: bool
  ) -> tuple[Sequence[str] | None, Lists, Lists]:
    check(pool.client is not None, 'partition: the data have no clients; e.g. iid')
    assert pool.client is not None
    assert pool.names is not None
    divide = prng_streams.host_rng(seed, prng_streams.SPLIT)
    places = [np.flatnonzero(mask) for mask in pool.masks]
    lists = [
      [place[r] for r in rows_of(pool.client[place], len(pool.names))]
      for place in places
    ]
    counts = np.sum([[len(r) for r in rows] for rows in lists], axis=0)
    chosen = np.flatnonzero(counts >= max(1, self.min_examples))
    enough = max(1, num_clients) <= len(chosen)
    check(enough, f'num_clients: {self!s:.40} has {len(chosen)}; lower it')
    if num_clients:
      select = prng_streams.host_rng(seed, prng_streams.SELECT)
      chosen = np.sort(select.choice(chosen, num_clients, replace=False))
    names: Any = pool.names[chosen]
    train = [lists[0][i] for i in chosen]
    if len(lists) == 1:
      single = names[counts[chosen] < 2].tolist()
      check(not single, f'client {single[:1]}: 1 example; use natural(min_examples=2)')
      train, test = split_each(divide, train, last)
      few = slice(-examples, None) if last and examples else slice(examples or None)
      return names, [rows[few] for rows in train], test
    if examples:
      train = [
        np.sort(divide.choice(r, examples, replace=False)) if examples < len(r) else r
        for r in train
      ]
    return names, train, [lists[1][i] for i in chosen]


class ListedRows(NamedTuple):
  """The rows of each client.

  Attributes:
    names: [M] of the clients; None if they are numbered.
    train: rows of each client, or all of them where `test` is None.
    test: test rows of each client; None where one list holds both.
  """

  names: list[str] | None
  train: Lists
  test: Lists | None


class Rows(Partition):
  """The rows of each client.

  Rows count from 0 in the order of the data. Where no test rows are listed, these are
  the listed rows of the data's own test split. If none is listed, its examples are
  dealt like the training examples of their class; without a test split, each client's
  rows are split 80/20. Clients keep the order of their rows.

  Attributes:
    rows: lists of rows, {name: rows} or {name: {'train': rows, 'test': rows}}; or a
      file of them: JSON; FedML's and NIID-Bench's net_dataidx_map (.txt); FL-bench's
      partition.pkl, or any .pkl or .npy of lists; FedScale's .csv, in which the client
      of each row is in the column client_id or user_id.
  """

  layer: ClassVar[int] = 9

  rows: Any

  def splits(
    self, pool: 'Pool', seed: int, num_clients: int, examples: int, last: bool
  ) -> tuple[Sequence[str] | None, Lists, Lists]:
    names, train, test = read_rows(self.rows)
    check(not examples, 'examples_per_client: does not apply to rows; leave it out')
    right = num_clients in (0, len(train))
    check(right, f'num_clients: is {num_clients}; {len(train)} clients are listed')
    listed = np.concatenate([*train, *(test or [])])
    most = listed.max(initial=0)
    check(most < len(pool.y), f'rows: no row {most}; there are {len(pool.y)}')
    if test is None and pool.test is not None and pool.test[listed].any():
      is_test = pool.test
      train, test = ([r[is_test[r] == i] for r in train] for i in (False, True))
    elif test is None and pool.test is not None:
      shares = shares_of(pool.labels, train, pool.num_classes)
      rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
      places = np.flatnonzero(pool.test)
      test = [places[r] for r in by_shares(rng, pool.labels[places], shares, 0)]
    elif test is None:
      rng = prng_streams.host_rng(seed, prng_streams.SPLIT)
      halves = split_each(rng, [np.arange(len(r)) for r in train], last)
      train, test = (
        [r[np.sort(half)] for r, half in zip(train, part, strict=True)]
        for part in halves
      )
    empty = [i for i, rows in enumerate(train) if not len(rows)]
    check(not empty, f'rows: client {empty[:1]} has no training rows')
    check(sum(map(len, test)), 'rows: there are no test rows')
    if unused := len(pool.y) - sum(map(len, [*train, *test])):
      warn_once(f'rows: {unused} of {len(pool.y)} examples are left out')
    return names, train, test


def read_rows(source: Any) -> ListedRows:
  """Rows of each client, from lists, a dict of lists, or a file of them.

  See `Rows`. Raises `UserError` unless these are distinct row numbers.
  """
  if isinstance(source, str | os.PathLike):
    with reading(source):
      source = _of_file(pathlib.Path(source))
  if isinstance(source, Mapping):
    source = source.get('data_indices', source)  # FL-bench's.
  names, clients = None, source
  if isinstance(source, Mapping):
    names, clients = [str(name) for name in source], list(source.values())
  check(len(clients), 'rows: there are no clients')
  splits = {name.lower() for name in names or ['']} <= {'train', 'test', 'val'}
  check(
    not splits, "rows: has splits; give {'client': {'train': [...], 'test': [...]}}"
  )
  test = None
  if isinstance(next(iter(clients)), Mapping):
    train, test = (
      [_numbers(client.get(name), i) for i, client in enumerate(clients)]
      for name in ('train', 'test')
    )
  else:
    train = [_numbers(rows, i) for i, rows in enumerate(clients)]
  every, counts = np.unique(np.concatenate([*train, *(test or [])]), return_counts=True)
  check((counts < 2).all(), f'rows: row {every[counts.argmax()]} is listed twice')
  return ListedRows(names, train, test)


def _numbers(values: Any, client: int) -> np.ndarray:
  try:
    rows = np.asarray(values)
  except ValueError:  # Of several lengths.
    rows = np.asarray(None)
  right = rows.ndim == 1 and (rows.dtype.kind in 'iu' or not len(rows))
  right = right and rows.astype(np.int64).min(initial=0) >= 0
  check(right, f'rows: client {client} has no list of row numbers from 0')
  return rows.astype(np.int64)


def _of_file(path: pathlib.Path) -> Any:
  if path.suffix in ('.pkl', '.pickle'):
    return array_pickles.read_pickle(path)
  with opened(path) as file:
    raw = file.read()
  if path.suffix == '.npy':
    return array_pickles.read_npy(raw, path)
  text = raw.decode('utf-8-sig')
  if path.suffix == '.txt':
    pairs = _LISTED.findall(text)
    return _unique((name, [int(r) for r in re.findall(r'\d+', r)]) for name, r in pairs)
  if path.suffix == '.json':
    return json.loads(text, object_pairs_hook=_unique)
  lines = csv.DictReader(text.splitlines())
  column = next((c for c in _CLIENT_COLUMNS if c in (lines.fieldnames or ())), '')
  check(column, f'{path}: lacks the column {" or ".join(_CLIENT_COLUMNS)}')
  clients: dict[str, list[int]] = {}
  for i, line in enumerate(lines):
    clients.setdefault(line[column], []).append(i)
  return clients


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
  """A dict of pairs; raises `UserError` on a name that occurs twice."""
  fields: dict[str, Any] = {}
  for name, value in pairs:
    check(name not in fields, f'rows: {name!s:.40} occurs twice')
    fields[name] = value
  return fields
