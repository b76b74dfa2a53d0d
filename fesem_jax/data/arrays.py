"""A user's own data in one .npz file; also what fesem-data writes."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fesem_jax.core.client_info import checked_weights
from fesem_jax.core.federated_data import FederatedData, check_targets
from fesem_jax.data import array_forms, array_values, class_labels, columns
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import CLASSIFICATION, TASKS
from fesem_jax.utils.atomic_files import write_arrays_atomically
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import read_npz, reading

NAMES = (
  'x', 'y', 'client', 'split', 'cluster', 'weight', 'scale', 'num_classes',
  'class_names', 'task', 'feature_names',
)  # fmt: skip


def load(path: pathlib.Path, task: str = '') -> Pool:
  """Natural clients, or examples to be dealt, from an .npz file.

  Arrays: `x` [T, ...] features; `y` [T] labels from 0, names of classes or one-hot
  rows [T, L], or, with several labels for each, [T, L] zeros and ones, or, of a
  regression, [T] or [T, L] numbers, or, of sequences, [T, S] next tokens with -1 where
  there is none. Optional: `client` [T] integers or strings,
  without which a partition deals the examples; `task` [], a name of `tasks.TASKS`;
  `num_classes` [], by default one more than the largest label or token of `y`;
  `class_names` [L] strings; `feature_names` [F] strings, for warnings;
  `scale` [], what models see `x` multiplied by (by default 1 / 255 for uint8 images,
  see `federated_data.scale_of`); `split` [T], 0 training and 1 test (without it each
  client is split 80/20); `cluster` [T], the true cluster of the example's client, a
  number or a name that figures show; without `client`, `partition=cluster+...` deals
  the examples of each cluster to clients; and `weight` [T], the weight of the example's
  client in means, for `weighting=by_weight`. Numbered clients and clusters are in the
  order of their numbers, others in alphabetical order; classes and clusters whose names
  are numbers, such as '2' and '10', in the order of these. If `y` holds names,
  `class_names` are all of them, in the order of the classes.

  The argument `task` says what `y` is for; '' takes what the file says, or else
  classification. Raises `UserError` if the file is absent, damaged, holds pickled
  objects (which are never unpickled), or its arrays do not fit.
  """
  with reading(path):
    arrays = read_npz(path)
    return from_arrays(path, arrays, task)


def from_arrays(path: object, arrays: Mapping[str, np.ndarray], task: str = '') -> Pool:
  """Natural clients from arrays that are named as in a file; see `load`.

  Raises `UserError`, naming `path` as where they are from, if they do not fit.
  """
  arrays = array_forms.by_role(arrays, path)
  if unknown := [str(name) for name in arrays if name not in NAMES]:
    raise UserError(
      f'{path} has an array {printable(unknown[0])}, which is unknown; arrays are '
      f'{", ".join(NAMES)}.'
    )
  arrays = {name: np.asarray(value) for name, value in arrays.items()}
  x = arrays['x']
  classes = array_values.num_classes(arrays)
  chosen = TASKS[array_values.task(path, arrays, task)]
  y, class_names = arrays['y'], array_values.class_names(arrays)
  if chosen is CLASSIFICATION:
    y, classes, own = class_labels.as_numbers(y, f'{path}: y', classes, class_names)
    class_names = class_names or own
  y = chosen.targets(y, f'{path}: y', classes)
  if len(y) != len(x):
    raise UserError(
      f'{path}: y has {len(y)} rows; x has {len(x)}. Give each row a target.'
    )
  check_targets(x.shape, y, chosen.name, f'{path}: y')
  for name in ('client', 'split', 'cluster', 'weight'):
    if name in arrays and arrays[name].shape != (len(x),):
      raise UserError(
        f'{path}: {name} has shape {arrays[name].shape}; x has {len(x)} rows. '
        'Give each row one value.'
      )
  columns_of_x = array_values.feature_names(arrays)
  x = _features(path, x)
  classes = classes or chosen.count_outputs(y)
  whole = Pool(
    x, y, classes, array_values.scale(path, arrays, x), task=chosen.name,
    class_names=class_names,
    feature_names=columns_of_x,
    # What models see are the numbers as they are, on purpose.
    are_tokens=(
      x.ndim == 2 and arrays['x'].dtype.kind in 'iu' and arrays.get('scale') == 1
      and bool((x > 1).any())  # Zeros and ones are one-hot columns.
    ),
    **_clients(path, arrays),
  )  # fmt: skip
  return whole if 'split' not in arrays else _split(path, whole, arrays['split'])


def _features(path: object, x: np.ndarray) -> np.ndarray:
  """Features [T, ...] as uint8 or finite float32."""
  if x.dtype.kind not in 'biuf':
    raise UserError(
      f'{path}: x is {x.dtype}; numbers are needed. A data frame with other columns is '
      'a table: `name=table:FILE`, or `arrays` itself.'
    )
  if x.dtype == np.uint8:
    return x
  with np.errstate(over='ignore'):  # Told of below.
    x = x.astype(np.float32)
  bad = np.flatnonzero(~np.isfinite(x).all(axis=tuple(range(1, x.ndim))))
  if len(bad):
    raise UserError(f'{path}: row {bad[0]} of x holds values that are not finite.')
  return x


def _clients(path: object, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """The fields of a pool that are of natural clients, or of known clusters alone."""
  role = next((role for role in ('client', 'cluster') if role in arrays), '')
  if not role:
    return {}
  names, first, client = columns.numbered(
    arrays[role], f'{path}: {role}', f'give every row a {role}'
  )
  names = names.astype(str)

  def of_each(values: np.ndarray, what: str, mend: str) -> np.ndarray:
    """[M] the value of each client, which all of its rows must have."""
    bad = np.flatnonzero(values[first][client] != values)
    if len(bad):
      called = names[client[bad[0]]]
      raise UserError(f'{path}: client {called} has examples of several {what}; {mend}')
    return values[first]

  clients = {'client': client, 'names': names, 'of_clusters': role == 'cluster'}
  if 'cluster' in arrays:
    kinds, _, numbers = columns.numbered(
      arrays['cluster'],
      f'{path}: cluster',
      'give every row a cluster, or leave out the array',
      by_number=True,
    )
    clusters = of_each(
      numbers,
      'clusters',
      'give all of them one, or leave out client, so that a partition deals clients '
      'inside of each cluster.',
    )
    texts = kinds.tolist()
    if kinds.dtype.kind == 'U' and texts == sorted(texts):
      clients['clusters'] = kinds[clusters]
    else:
      clients['clusters'] = clusters
      if not (kinds == np.arange(len(kinds))).all():  # Figures show their names.
        clients['cluster_names'] = tuple(kinds.astype(str).tolist())
  if 'weight' in arrays:
    weight = arrays['weight']
    checked_weights(weight, f'{path}: weight')
    weight = of_each(
      weight, 'weights', 'a weight is that of a client, the same in all its rows.'
    )
    clients['weights'] = checked_weights(weight, f'{path}: weight')
  return clients


def _split(path: object, whole: Pool, split: np.ndarray) -> Pool:
  """A pool whose test examples are apart; `split` [T] is 1 for these and 0 else."""
  if not np.isin(split, (0, 1)).all():
    raise UserError(f'{path}: split must hold 0 (training) and 1 (test).')
  train, test = split == 0, split == 1
  x, y, client, names = whole.x, whole.y, whole.client, whole.names
  parts = whole._replace(x=x[train], y=y[train], test_x=x[test], test_y=y[test])
  if client is None or names is None:
    return parts
  return parts._replace(client=client[train], test_client=client[test])


def save(path: pathlib.Path, train: FederatedData, test: FederatedData) -> None:
  """Writes two splits of the same clients, on the host, for `load`.

  Raises `UserError` if the file cannot be written.
  """
  sizes = [np.asarray(s.sizes()) for s in (train, test)]
  names = _as_numbers(train.info.names)
  client = np.concatenate([np.repeat(names, n) for n in sizes])
  arrays = {
    'x': np.concatenate([train.x, test.x]),
    'y': np.concatenate([train.y, test.y]),
    'client': client,
    'split': np.repeat(np.array([0, 1], np.uint8), [len(train.y), len(test.y)]),
    'num_classes': np.array(train.num_classes),
  }
  if train.x.dtype == np.uint8 or train.scale != 1:  # A scale of 1 would say tokens.
    arrays['scale'] = np.array(train.scale)
  if train.task != CLASSIFICATION.name:
    arrays['task'] = np.array(train.task)
  if train.info.class_names is not None:
    arrays['class_names'] = np.array(train.info.class_names)
  if train.info.weights is not None:
    arrays['weight'] = np.concatenate([np.repeat(train.info.weights, n) for n in sizes])
  if train.info.clusters is not None:
    clusters = train.info.clusters
    if train.info.cluster_names is not None:
      clusters = _as_numbers(np.array(train.info.cluster_names))[clusters]
    arrays['cluster'] = np.concatenate([np.repeat(clusters, n) for n in sizes])
  write_arrays_atomically(path, arrays)


def _as_numbers(names: np.ndarray) -> np.ndarray:
  """Names as the numbers that they are, if in this order, so that `load` keeps it."""
  for kind in (np.int64, np.float64):
    try:
      numbers = names.astype(kind)
    except (ValueError, OverflowError):
      continue
    plain = np.isfinite(numbers).all() and (numbers.astype(str) == names).all()
    if plain and (np.diff(numbers) > 0).all():
      return numbers
  return names
