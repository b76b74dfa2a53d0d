"""Tables of federated data as CSV files: clients, classes, features and copies."""

import csv
import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.core import feature_range
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import examples_checks, label_skew
from fesem_jax.utils.atomic_files import write_atomically


def write(
  folder: pathlib.Path, train: FederatedData, test: FederatedData, names: Sequence[str]
) -> list[pathlib.Path]:
  """Writes the tables of two splits of the same clients.

  `clients.csv` has sizes and true clusters, `classes.csv` the examples of each class on
  each client, `features.csv` the range of each feature as models see it, and
  `copies.csv` the test examples that are training examples. `names` are those of the
  classes. Returns the paths.
  """
  folder.mkdir(parents=True, exist_ok=True)
  tables = {
    'clients': _clients(train, test),
    'features': _features(train, test),
    'copies': _copies(train, test),
  }
  if tasks.TASKS[train.task].has_classes:
    tables['classes'] = _classes(train, test, names)
  paths = []
  for name, lines in tables.items():
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(lines)
    paths.append(folder / f'{name}.csv')
    write_atomically(paths[-1], text.getvalue())
  return paths


def _clusters(train: FederatedData) -> list[Any]:
  clusters, names = train.info.clusters, train.info.cluster_names
  if clusters is None:
    return [''] * train.num_clients
  return clusters.tolist() if names is None else [names[c] for c in clusters]


def _clients(train: FederatedData, test: FederatedData) -> Iterable[Sequence[Any]]:
  yield 'client', 'cluster', 'training', 'test'
  sizes = (np.asarray(split.sizes()).tolist() for split in (train, test))
  yield from zip(train.info.names, _clusters(train), *sizes, strict=True)


def _classes(
  train: FederatedData, test: FederatedData, names: Sequence[str]
) -> Iterable[Sequence[Any]]:
  yield 'client', 'split', *names
  counts = [label_skew.label_counts(split).tolist() for split in (train, test)]
  for name, *of_client in zip(train.info.names, *counts, strict=True):
    for split, own in zip(('training', 'test'), of_client, strict=True):
      yield name, split, *own


def _features(train: FederatedData, test: FederatedData) -> Iterable[Sequence[Any]]:
  yield 'feature', 'split', 'least', 'most', 'root_mean_square'
  for split, name in ((train, 'training'), (test, 'test')):
    if not len(split.y):
      continue
    ranges = feature_range.of_features(split.x, split.scale)
    for i, values in enumerate(zip(*ranges, strict=True)):
      yield i, name, *(f'{value:.6g}' for value in values)


def _copies(train: FederatedData, test: FederatedData) -> Iterable[Sequence[Any]]:
  """Places of both, counted from 0 among the examples of a client."""
  yield 'test_client', 'test_example', 'training_client', 'training_example'
  repeats = examples_checks.repeated(train, test)
  for of_test, of_train in zip(repeats.in_both, repeats.of_train, strict=True):
    yield *_place(test, of_test), *_place(train, of_train)


def _place(split: FederatedData, row: int) -> tuple[str, int]:
  """Client of a row, and the row's number among the client's."""
  offsets = np.asarray(split.offsets)
  client = int(np.searchsorted(offsets, row, side='right')) - 1
  return split.info.names[client], int(row - offsets[client])
