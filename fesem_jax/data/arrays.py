"""A user's own data in one .npz file; also what prepare_data writes."""

import pathlib
from collections.abc import Mapping

import numpy as np

from fesem_jax.core import feature_range
from fesem_jax.core.client_info import checked_weights
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.split_checks import check_targets, scale_of, warn_of_gaps
from fesem_jax.data import class_labels, columns
from fesem_jax.data.pool import Pool
from fesem_jax.tasks import CLASSIFICATION, TASKS
from fesem_jax.utils import array_checks
from fesem_jax.utils.atomic_files import write_arrays_atomically
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.safe_files import read_npz, reading

NAMES = (
  'x', 'y', 'client', 'split', 'cluster', 'weight', 'scale', 'num_classes',
  'class_names', 'task', 'feature_names',
)  # fmt: skip


_IN_PYTHON = (
  'read it in a function of your own, `name=MODULE:FUNCTION` of the binaries, or pass '
  'its arrays as `arrays`'
)
# What files of other kinds are read by.
_NO_ARRAYS = {
  '.pt': _IN_PYTHON,
  '.pth': _IN_PYTHON,
  '.pkl': _IN_PYTHON,
  '.pickle': _IN_PYTHON,
  '.mat': _IN_PYTHON,
  '.npy': 'it holds one array; save all by `np.savez(file, x=x, y=y, client=client)`',
  **dict.fromkeys(('.csv', '.tsv', '.parquet'), 'a table is `name=table:FILE`'),
}


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
  see `split_checks.scale_of`); `split` [T], 0 training and 1 test (without it each
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
    if path.is_dir():
      raise UserError(
        f"{path} is a folder; `npz:` names a file. PFLlib's folder is `name=pfllib:"
        f"{path}`, FL-bench's `name=flbench:{path}`."
      )
    if not path.is_file():
      raise UserError(
        f'{path} does not exist; check the name, or the folder that it is relative to.'
      )
    if path.suffix.lower() in _NO_ARRAYS:
      raise UserError(f'{path} is no .npz file: {_NO_ARRAYS[path.suffix.lower()]}.')
    try:
      arrays = read_npz(path)
    except UserError as e:
      if path.parent.name in ('train', 'test') and path.stem.isdecimal():
        folder = path.parent.parent
        raise UserError(f"{e} PFLlib's folder is `name=pfllib:{folder}`.") from e
      raise
    return from_arrays(path, arrays, task)


def from_arrays(path: object, arrays: Mapping[str, np.ndarray], task: str = '') -> Pool:
  """Natural clients from arrays that are named as in a file; see `load`.

  Raises `UserError`, naming `path` as where they are from, if they do not fit.
  """
  if not isinstance(arrays, Mapping):
    raise UserError(
      f'`arrays` is a {type(arrays).__name__}; give a dict of arrays by name, e.g. '
      '{"x": x, "y": y}.'
    )
  if unknown := [str(name) for name in arrays if name not in NAMES]:
    raise UserError(
      f'{path} has an array {printable(unknown[0])}, which is unknown; arrays are '
      f'{", ".join(NAMES)}.'
    )
  arrays = {name: _array(path, name, array) for name, array in arrays.items()}
  for name in ('x', 'y'):
    if name not in arrays:
      raise UserError(
        f'{path} lacks the array {name}; it needs x and y, and client unless they are '
        'to be dealt.'
      )
  if 'weight' in arrays and 'client' not in arrays:
    raise UserError(f'{path} has weights of clients, but no array client.')
  x = arrays['x']
  if x.ndim < 2:
    raise UserError(
      f'{path}: x has shape {x.shape}; [examples, features ...] is needed.'
    )
  given = _num_classes(path, arrays['num_classes']) if 'num_classes' in arrays else None
  chosen = TASKS[_task(path, arrays, task)]
  y, class_names = arrays['y'], None
  if 'class_names' in arrays:
    class_names = _class_names(path, arrays['class_names'])
  if chosen is CLASSIFICATION:
    y, given, own = class_labels.as_numbers(y, f'{path}: y', given, class_names)
    class_names = class_names or own
  y = chosen.targets(y, f'{path}: y', given)
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
  if len(x) == 0:
    raise UserError(f'{path} holds no examples; give x and y rows.')
  if x.dtype.kind not in 'biuf':
    raise UserError(f'{path}: x is {x.dtype}; numbers are needed.')
  feature_range.warn_of_rounding(x, f'{path}: x')
  if x.dtype != np.uint8:
    with np.errstate(over='ignore'):  # Told of below.
      x = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x).all(axis=tuple(range(1, x.ndim))))
    if len(bad):
      raise UserError(f'{path}: row {bad[0]} of x holds values that are not finite.')
  names = client = clusters = cluster_names = weights = None
  of_clusters = 'cluster' in arrays and 'client' not in arrays
  if of_clusters or 'client' in arrays:
    source = 'cluster' if of_clusters else 'client'
    names, first, client = columns.numbered(
      arrays[source], f'{path}: {source}', f'give every row a {source}'
    )
    names = names.astype(str)
    if 'cluster' in arrays:
      clusters, cluster_names = _clusters(path, arrays['cluster'], names, first, client)
    if 'weight' in arrays:
      weights = _weights(path, arrays['weight'], names, first, client)
  scale = _scale(path, arrays['scale']) if 'scale' in arrays else None
  scale = scale_of(x, f'{path}: x') if scale is None else scale
  single = np.finfo(np.float32)
  if not float(single.tiny) <= scale <= float(single.max):
    raise UserError(f'{path}: scale {scale} must be positive, and a 32-bit float.')
  classes = given or chosen.count_outputs(y)
  if given is None and class_names is None:
    warn_of_gaps(y, classes, chosen.name, f'{path}: y')
  if class_names is not None and len(class_names) != classes:
    raise UserError(
      f'{path}: class_names must be {classes} strings, one for each class.'
    )
  whole = Pool(
    x, y, classes, scale, client=client, names=names, clusters=clusters,
    task=chosen.name,
    class_names=class_names, cluster_names=cluster_names, weights=weights,
    of_clusters=of_clusters, feature_names=_feature_names(path, arrays, x.shape),
    # What models see are the numbers as they are, on purpose.
    are_tokens=(
      x.ndim == 2 and arrays['x'].dtype.kind in 'iu' and arrays.get('scale') == 1
      and bool((x > 1).any())  # Zeros and ones are one-hot columns.
    ),
  )  # fmt: skip
  return whole if 'split' not in arrays else _split(path, whole, arrays['split'])


def _split(path: object, whole: Pool, split: np.ndarray) -> Pool:
  """A pool whose test examples are apart; `split` [T] is 1 for these and 0 else."""
  if not np.isin(split, (0, 1)).all():
    raise UserError(f'{path}: split must hold 0 (training) and 1 (test).')
  train, test = split == 0, split == 1
  if test.sum() > train.sum():
    warn_once(
      f'{path}: split has {test.sum()} test examples (1) and only {train.sum()} '
      'training examples (0); check that they are not swapped.'
    )
  x, y, client, names = whole.x, whole.y, whole.client, whole.names
  parts = whole._replace(x=x[train], y=y[train], test_x=x[test], test_y=y[test])
  if client is None or names is None:
    if not train.any() or not test.any():
      raise UserError(f'{path}: split must hold both 0 (training) and 1 (test).')
    return parts
  if not test.any():
    raise UserError(
      f'{path}: split has no test examples (1); leave out split, and each client is '
      'split 80/20.'
    )
  lacking = np.setdiff1d(np.arange(len(names)), client[train])
  if len(lacking):
    kind = 'cluster' if whole.of_clusters else 'client'
    raise UserError(
      f'{path}: {kind} {names[lacking[0]]} has no training examples; remove its test '
      'examples, or give it some with split 0.'
    )
  return parts._replace(client=client[train], test_client=client[test])


def _class_names(path: object, value: np.ndarray) -> tuple[str, ...]:
  if value.ndim != 1:
    raise UserError(f'{path}: class_names must be strings, one for each class.')
  value = columns.decoded(value, f'{path}: class_names')
  names = value.tolist()
  if not all(isinstance(name, str) for name in names):
    raise UserError(f'{path}: class_names must be strings, one for each class.')
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise UserError(
      f'{path}: class_names has {twice!r} twice; give each class its own name.'
    )
  return tuple(names)


def _feature_names(
  path: object, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> tuple[str, ...] | None:
  if 'feature_names' not in arrays:
    return None
  names = arrays['feature_names']
  if names.shape != shape[1:]:
    raise UserError(
      f'{path}: feature_names has shape {names.shape}, an example {shape[1:]}; name '
      'each column of x, or leave the array out.'
    )
  return tuple(map(str, names.tolist()))


def _clusters(
  path: object,
  cluster: np.ndarray,
  names: np.ndarray,
  first: np.ndarray,
  client: np.ndarray,
) -> tuple[np.ndarray, tuple[str, ...] | None]:
  """True clusters of the clients `names`, and their names if these are other numbers.

  Example `first[i]` is one of client i, `client` [T] are the numbers of clients.
  """
  where = f'{path}: cluster'
  found, _, numbers = columns.numbered(
    cluster, where, 'give every row a cluster, or leave out the array', by_number=True
  )
  bad = np.flatnonzero(numbers[first][client] != numbers)
  if len(bad):
    raise UserError(
      f'{path}: client {names[client[bad[0]]]} has examples of several clusters; '
      'give all of them one, or leave out client, so that a partition deals clients '
      'inside of each cluster.'
    )
  texts = found.tolist()
  if found.dtype.kind == 'U' and texts == sorted(texts):
    return found[numbers[first]], None
  if (found == np.arange(len(found))).all():
    return numbers[first], None
  return numbers[first], tuple(found.astype(str).tolist())


def _weights(
  path: object,
  weight: np.ndarray,
  names: np.ndarray,
  first: np.ndarray,
  client: np.ndarray,
) -> np.ndarray:
  """[M] weights of the clients `names`; for `first` and `client`, see `_clusters`."""
  if weight.dtype.kind not in 'biuf':
    raise UserError(f'{path}: weight is {weight.dtype}; numbers are needed.')
  checked_weights(weight, f'{path}: weight')
  bad = np.flatnonzero(weight[first][client] != weight)
  if len(bad):
    raise UserError(
      f'{path}: client {names[client[bad[0]]]} has examples of several weights; a '
      'weight is that of a client, the same in all its rows.'
    )
  return checked_weights(weight[first], f'{path}: weight')


def _array(path: object, name: str, value: object) -> np.ndarray:
  if np.ma.is_masked(value):
    raise UserError(
      f'{path}: {name} is a masked array, whose mask would be lost; remove the masked '
      'rows or fill them.'
    )
  try:
    return np.asarray(value)
  except ValueError as e:
    raise UserError(f'{path}: {name} has rows of different shapes.') from e


def _scale(path: object, value: np.ndarray) -> float:
  if value.size != 1 or value.dtype.kind not in 'biuf':
    raise UserError(f'{path}: scale must be one number, e.g. {1 / 255:.6f} for pixels.')
  return float(value.reshape(()))


def _num_classes(path: object, value: np.ndarray) -> int:
  if value.shape != () or value.dtype.kind not in 'iuf':
    raise UserError(f'{path}: num_classes must be one number.')
  if not 1 <= value <= array_checks.MAX_CLASSES or value != np.round(value):
    raise UserError(
      f'{path}: num_classes is {value}; a whole number from 1 to '
      f'{array_checks.MAX_CLASSES} is needed.'
    )
  return int(value)


def _task(path: object, arrays: Mapping[str, np.ndarray], asked: str) -> str:
  """The task of a user's data: as asked for, as they say, or classification."""
  if 'task' not in arrays:
    return asked or CLASSIFICATION.name
  said = arrays['task'].astype(str)
  if said.shape != () or said.item() not in TASKS:
    raise UserError(f'{path}: task must be one of {", ".join(TASKS)}.')
  if asked and asked != said.item():
    raise UserError(
      f'{argument("task", asked)} contradicts {path}, whose task is {said.item()}; '
      'leave it out.'
    )
  return str(said.item())


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
