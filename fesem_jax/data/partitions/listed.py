"""Partitions that the data or a list of rows determine."""

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.data.partitions.partition import (
  Array,
  Partition,
  by_shares,
  rows_of,
  shares_of,
  split_each,
)
from fesem_jax.data.partitions.partition import Rows as Lists
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check, warn_once
from fesem_jax.utils.safe_files import opened, read_pickle, reading

if TYPE_CHECKING:
  from fesem_jax.data.pool import Pool

Splits = tuple[Sequence[str] | None, Lists, Lists]  # Names, training and test rows.

# FedML's and NIID-Bench's net_dataidx_map.txt: `0: [`, numbers, `]` of each client.
_LISTED = re.compile(r'(\w+)\s*:\s*\[([^\[\]]*)\]')


class Natural(Partition):
  """The clients of the data with at least `min_examples` examples."""

  layer = 9
  min_examples: ranges.Index = 0

  def splits(
    self, pool: 'Pool', seed: int, num_clients: int, examples: int, last: bool
  ) -> Splits:
    check(pool.client is not None, 'partition: the data have no clients; e.g. iid')
    assert pool.client is not None
    assert pool.names is not None
    divide = prng_streams.host_rng(seed, prng_streams.SPLIT)
    lists = [
      [place[r] for r in rows_of(pool.client[place], len(pool.names))]
      for place in map(np.flatnonzero, pool.masks)
    ]
    counts = np.sum([[len(r) for r in rows] for rows in lists], axis=0)
    clients = np.flatnonzero(counts >= max(1, self.min_examples))
    enough = max(1, num_clients) <= len(clients)
    check(enough, f'num_clients: {self!s:.40} has {len(clients)}; lower it')
    if num_clients:
      select = prng_streams.host_rng(seed, prng_streams.SELECT)
      clients = np.sort(select.choice(clients, num_clients, replace=False))
    names: Any = pool.names[clients]
    train = [lists[0][i] for i in clients]
    if len(lists) == 1:
      single = names[counts[clients] < 2].tolist()
      check(not single, f'client {single[:1]}: 1 example; use natural(min_examples=2)')
      train, test = split_each(divide, train, last)
      taken = slice(-examples, None) if last and examples else slice(examples or None)
      return names, [rows[taken] for rows in train], test
    for i, rows in enumerate(train):
      if 0 < examples < len(rows):
        train[i] = np.sort(divide.choice(rows, examples, replace=False))
    return names, train, [lists[1][i] for i in clients]


class Rows(Partition):
  """Listed rows of each client, numbered from 0 in the order of the data.

  Without test rows, these are the listed rows of the data's own test split, or its
  examples, dealt like the training examples of their class; else rows are split 80/20.

  Attributes:
    rows: lists of rows, {name: rows} or {name: {'train': rows, 'test': rows}}; or a
      file: JSON; FedML's and NIID-Bench's net_dataidx_map (.txt); FL-bench's
      partition.pkl, or any .pkl of lists; FedScale's .csv, with clients in the column
      client_id. Or a partitioner of flwr-datasets whose data have the row numbers in a
      column 'row': partitioner.dataset = data.add_column('row', range(len(data))).
  """

  layer = 9
  rows: Any

  def splits(
    self, pool: 'Pool', seed: int, num_clients: int, examples: int, last: bool
  ) -> Splits:
    names, train, test = read_rows(self.rows)
    check(not examples, 'examples_per_client: does not apply to rows; leave it out')
    valid = num_clients in (0, len(train))
    check(valid, f'num_clients: is {num_clients}; {len(train)} clients are listed')
    listed, is_test = np.concatenate([*train, *(test or [])]), pool.test
    most = listed.max(initial=0)
    check(most < len(pool.y), f'rows: no row {most}; there are {len(pool.y)}')
    if test is None and is_test is not None and is_test[listed].any():
      train, test = ([r[is_test[r] == i] for r in train] for i in (False, True))
    elif test is None and is_test is not None:
      shares = shares_of(pool.labels, train, pool.num_classes)
      rng = prng_streams.host_rng(seed, prng_streams.PARTITION)
      places = np.flatnonzero(is_test)
      test = [places[r] for r in by_shares(rng, pool.labels[places], shares, 0)]
    elif test is None:
      rng = prng_streams.host_rng(seed, prng_streams.SPLIT)
      parts = split_each(rng, [np.arange(len(r)) for r in train], last)
      train, test = (
        [r[np.sort(p)] for r, p in zip(train, ps, strict=True)] for ps in parts
      )
    check(min(map(len, train)), 'rows: a client has no training rows')
    check(any(map(len, test)), 'rows: there are no test rows')
    if unused := len(pool.y) - sum(map(len, [*train, *test])):
      warn_once(f'rows: {unused} of {len(pool.y)} examples are left out')
    return names, train, test


def read_rows(source: Any) -> tuple[list[str] | None, Lists, Lists | None]:
  """Names, or None; training rows, or all; and test rows, or None; see `Rows`."""
  if isinstance(source, str | os.PathLike):
    with reading(source):
      source = _read_file(pathlib.Path(source))
  names = None
  if hasattr(source, 'load_partition'):  # Of flwr-datasets.
    source = [source.load_partition(i)['row'] for i in range(source.num_partitions)]
  if isinstance(source, Mapping):
    source = source.get('data_indices', source)  # FL-bench's.
  if isinstance(source, Mapping):
    names, source = [str(name) for name in source], list(source.values())
    check({*names} - {'train', 'test', 'val'}, 'rows: has splits; list them by client')
  check(len(source), 'rows: there are no clients')
  test = None
  if isinstance(source[0], Mapping):
    train, test = ([_numbers(c[name]) for c in source] for name in ('train', 'test'))
  else:
    train = [_numbers(rows) for rows in source]
  ids, counts = np.unique(np.concatenate([*train, *(test or [])]), return_counts=True)
  check((counts < 2).all(), f'rows: row {ids[counts.argmax()]} is listed twice')
  return names, train, test


def _numbers(values: Any) -> Array:
  rows = np.asarray(values) if len(values) else np.zeros(0, int)
  valid = rows.ndim == 1 and rows.dtype.kind in 'iu' and rows.min(initial=0) >= 0
  check(valid, f'rows: {values!s:.40} are no row numbers from 0')
  return rows.astype(np.int64)


def _read_file(path: pathlib.Path) -> Any:
  if path.suffix in ('.pkl', '.pickle'):
    return read_pickle(path)
  if path.suffix == '.csv':
    import pandas  # Slow to import.

    codes, names = pandas.factorize(pandas.read_csv(path)['client_id'])
    return dict(zip(names, rows_of(codes, len(names)), strict=True))
  with opened(path) as file:
    text = file.read().decode('utf-8-sig')
  if path.suffix == '.json':
    return json.loads(text)
  pairs = _LISTED.findall(text)
  return {name: [int(row) for row in re.findall(r'\d+', rows)] for name, rows in pairs}
