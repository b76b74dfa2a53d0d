"""Tables of federated data as CSV files: clients, classes and a description."""

import csv
import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import description, label_skew
from fesem_jax.utils.atomic_files import write_atomically


def write(
  folder: pathlib.Path, train: FederatedData, test: FederatedData, names: Sequence[str]
) -> list[pathlib.Path]:
  """Writes the tables of two splits of the same clients.

  `clients.csv` has sizes and true clusters, `classes.csv` the examples of each class on
  each client, `description.csv` what `data.describe` returns. `names` are those of the
  classes. Returns the paths.
  """
  folder.mkdir(parents=True, exist_ok=True)
  paths = [folder / 'description.csv']
  write_atomically(paths[0], description.describe(train, test).to_csv())
  tables = {'clients': _clients(train, test)}
  if tasks.TASKS[train.task].has_classes:
    tables['classes'] = _classes(train, test, names)
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
