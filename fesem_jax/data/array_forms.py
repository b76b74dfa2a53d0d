"""The forms in which programs hold examples, as arrays by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fesem_jax.data import tables
from fesem_jax.utils.display import listed
from fesem_jax.utils.errors import UserError, check

# Names of splits, which are none of clients.
_SPLITS = (
  'train', 'training', 'test', 'testing', 'val', 'valid', 'validation', 'dev',
)  # fmt: skip
# What other programs call these arrays, alone or as x_train and train_x.
_ROLES = {
  'x': ('x', 'data', 'images', 'features'),
  'y': ('y', 'labels', 'label', 'targets', 'target'),
  'client': ('client', 'clients'),
}
_OF_ROWS = ('x', 'y', 'client', 'cluster', 'weight')
_WANTED = (
  'give a dict of arrays by name, {"x": x, "y": y}, a data frame, an object with '
  '`tensors` or `data` and `targets`, or the examples of each client, {"name": (x, y)}'
)


def named(given: Any, where: object, chosen: tables.Columns) -> dict[str, Any]:
  """Arrays named as those of `arrays.load`, from any of these forms.

  A dict of such arrays; a data frame of pandas or polars, whose columns are `chosen`,
  or one of each client; a
  dataset of PyTorch, by its attributes `tensors` or `data` and `targets`, or, if it has
  a transform or none of these, by its items (x, label); examples of each client, a dict
  {name: (x, y)} or a list of pairs; or a dict of 'train' and 'test' of any of these.
  SciPy's sparse matrices become dense. Raises `UserError`, naming `where`, on
  everything else.
  """
  if tables.is_frame(given):
    return tables.of_frame(given, where, chosen)
  _check_splits(given, where)
  if isinstance(given, Mapping) and given and 'x' not in given:
    frames = all(map(tables.is_frame, given.values()))
    if frames and set(given) != {'train', 'test'}:
      return tables.of_frames(given, where, chosen)
  given = _by_split(given)
  if isinstance(given, Mapping) and set(given) == {'train', 'test'}:
    parts = [named(given[split], f'{where}, {split}', chosen) for split in given]
    return _joined(dict(zip(given, parts, strict=True)), where)
  arrays = _of_object(given, where)
  if arrays is None:
    arrays = _of_clients(given, where)
  if arrays is None:
    raise UserError(f'{where}: `arrays` is a {type(given).__name__}; {_WANTED}.')
  return {str(name): _plain(value) for name, value in arrays.items()}


def _by_split(given: Any) -> Any:
  """{'train': {name: examples}, 'test': ...} from {name: {'train': ..., 'test': ...}}.

  Anything else is returned as it is.
  """
  clients = dict(_in_order(given))
  each = [
    isinstance(v, Mapping) and set(v) == {'train', 'test'} for v in clients.values()
  ]
  if not each or not all(each):
    return given
  return {
    split: {name: held[split] for name, held in clients.items()}
    for split in ('train', 'test')
  }


def _in_order(given: Any) -> list[tuple[Any, Any]]:
  """(name, examples) of each client of a dict or a list; none of anything else."""
  if isinstance(given, Mapping):
    return list(given.items())
  if not isinstance(given, list | tuple):
    return []
  width = len(str(len(given) - 1))
  return [(f'client{i:0{width}d}', held) for i, held in enumerate(given)]


def by_role(given: Mapping[str, Any], where: object) -> Mapping[str, Any]:
  """Arrays under the names that `arrays.load` has for them.

  Such as Keras's `x_train`, `y_train`, `x_test` and `y_test`, MedMNIST's `train_images`
  and so on, whose validation examples are left out, or `data` and `labels`. Arrays that
  have the names of `arrays.load` are returned as they are.
  """
  if {'x', 'y'} & set(given):
    return given
  parts: dict[str, dict[str, Any]] = {}
  for name, array in given.items():
    words = str(name).lower().split('_')
    split = next((word for word in words if word in _SPLITS), '')
    called = '_'.join(word for word in words if word != split)
    role = next((role for role, names in _ROLES.items() if called in names), str(name))
    of_split = parts.setdefault(split, {})
    if role in of_split:
      return given
    of_split[role] = array
  of_all = parts.pop('', {})
  if not parts:
    return of_all
  if not {'train', 'test'} <= set(parts) or {'x', 'y'} & set(of_all):
    return given
  return of_all | _joined({split: parts[split] for split in ('train', 'test')}, where)


def _check_splits(given: Any, where: object) -> None:
  """Raises `UserError` on splits that would become clients."""
  names = list(given) if isinstance(given, Mapping) else []
  splits = len(names) > 1 and all(str(name).lower() in _SPLITS for name in names)
  if splits and set(names) != {'train', 'test'}:
    raise UserError(
      f'{where}: {", ".join(map(str, names))} would be clients; give a dict of '
      "'train' and 'test' alone, and join other splits with one of them or leave "
      'them out.'
    )
  if isinstance(given, tuple) and len(given) == 2 and all(map(_is_pair, given)):
    raise UserError(
      f'{where}: two pairs (x, y) in a tuple may be training and test examples, or two '
      "clients; give {'train': {'x': x, 'y': y}, 'test': ...}, or a list of clients."
    )


def _of_object(given: Any, where: object) -> Mapping[str, Any] | None:
  """Arrays by name, or a dataset by its attributes; None if it is neither."""
  if isinstance(given, Mapping):
    if {'x', 'y'} & set(given) or not given:
      return given
    if {'data', 'target'} <= set(given):  # scikit-learn's Bunch.
      return {'x': given['data'], 'y': given['target']}
    clients = all(_is_pair(held) or _is_dataset(held) for held in given.values())
    return None if clients else given
  tensors = getattr(given, 'tensors', None)
  if isinstance(tensors, Sequence):
    return {'x': tensors[0], 'y': tensors[1]}
  changed = any(getattr(given, f'{what}transform', None) for what in ('', 'target_'))
  if hasattr(given, 'data') and hasattr(given, 'targets') and not changed:
    return _with_classes(given, {'x': given.data, 'y': given.targets}, where)
  if hasattr(given, 'dataset') and hasattr(given, 'indices'):  # torch's Subset.
    whole = _of_object(given.dataset, where)
    if whole is None:
      return None
    rows = np.asarray(given.indices)
    return {
      name: value if name == 'class_names' else np.asarray(_plain(value))[rows]
      for name, value in whole.items()
    }
  if hasattr(given, '__getitem__') and hasattr(given, '__len__') and len(given):
    return _of_items(given, where)
  return None


def _with_classes(given: Any, arrays: dict[str, Any], where: object) -> dict[str, Any]:
  """The arrays with the names of `classes`, where the dataset has as many."""
  classes, y = getattr(given, 'classes', None), np.asarray(_plain(arrays['y']))
  if classes is not None and y.dtype.kind in 'iu' and len(classes) > np.max(y):
    arrays['class_names'] = [str(name) for name in classes]
  return arrays


def _of_items(given: Any, where: object) -> dict[str, Any] | None:
  """The examples of a dataset whose items are pairs (x, label); None if they are not.

  Its transform, if it has one, is applied to them.
  """
  pairs = [given[i] for i in range(len(given))]
  if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
    return None
  xs, ys = ([np.asarray(_plain(pair[i])) for pair in pairs] for i in (0, 1))
  if any(y.ndim for y in ys):
    return None
  arrays = {'x': np.stack(xs), 'y': np.array([y.item() for y in ys])}
  return _with_classes(given, arrays, where)


def _is_pair(value: Any) -> bool:
  """True if a value may be the examples of a client."""
  if isinstance(value, Mapping):
    return {'x', 'y'} <= set(value)
  return isinstance(value, tuple | list) and len(value) == 2


def _is_dataset(value: Any) -> bool:
  """True if a value is a dataset of PyTorch, such as that of a client."""
  forms = ('tensors',), ('data', 'targets'), ('dataset', 'indices')
  return any(all(hasattr(value, name) for name in names) for names in forms)


def _of_clients(given: Any, where: object) -> dict[str, Any] | None:
  """All rows and the client of each, from the examples of each client."""
  clients = _in_order(given)
  if not clients or not all(_is_pair(held) or _is_dataset(held) for _, held in clients):
    return None
  xs: list[np.ndarray] = []
  ys: list[np.ndarray] = []
  names: list[str] = []
  classes: dict[Any, Any] = {}  # Of the clients that name them.
  for name, held in clients:
    pair = held if _is_pair(held) else _of_object(held, f'{where}, client {name}')
    if isinstance(pair, Mapping):
      classes[name] = pair.get('class_names')
    assert pair is not None
    x, y = (pair['x'], pair['y']) if isinstance(pair, Mapping) else pair
    x, y = (np.asarray(_plain(a)) for a in (x, y))
    check(len(x) == len(y), f'{where}, client {name}: {len(x)} x and {len(y)} y')
    if len(x):
      xs.append(x)
      ys.append(y)
      names.append(name)
  named = {name: list(own) for name, own in classes.items() if own is not None}
  first = next(iter(named), None)
  if other := [name for name, own in named.items() if own != named[first]]:
    raise UserError(
      f'{where}: the classes of {first} are {listed(named[first], 5)}, those of '
      f'{other[0]} {listed(named[other[0]], 5)}; number those of all clients alike.'
    )
  if not all(isinstance(name, str | int | float | np.number) for name in names):
    names = list(map(str, names))
  if len(set(map(str, names))) < len(names):
    texts = list(map(str, names))
    twice = next(name for name in texts if texts.count(name) > 1)
    raise UserError(f'{where}: two clients are called {twice}; rename one.')
  client = np.repeat(np.array(names), [len(y) for y in ys])
  return {'x': np.concatenate(xs), 'y': np.concatenate(ys), 'client': client}


def _joined(parts: dict[str, dict[str, Any]], where: object) -> dict[str, Any]:
  """The arrays of the parts train and test, and `split`."""
  train, test = parts['train'], parts['test']
  if set(train) != set(test) or 'split' in train:
    raise UserError(
      f'{where}: train and test must hold the same arrays, without split; train has '
      f'{", ".join(train)}, test {", ".join(test)}.'
    )
  of_rows = [name for name in _OF_ROWS if name in train]
  for split, part in parts.items():  # Rows that one lacks would shift.
    sizes = {name: len(part[name]) for name in of_rows}
    check(len(set(sizes.values())) < 2, f'{where}: rows of {split} differ: {sizes}')
  whole = {}
  for name, first in train.items():
    second = test[name]
    if name in of_rows:
      whole[name] = np.concatenate([first, second])
    elif not np.array_equal(first, second):
      raise UserError(
        f'{where}: {name} differs between train and test; give both the same.'
      )
    else:
      whole[name] = first
  if not of_rows:
    return whole
  counts = [len(parts[split][of_rows[0]]) for split in ('train', 'test')]
  return whole | {'split': np.repeat([0, 1], counts)}


def _plain(value: Any) -> Any:
  """A tensor or a sparse matrix as a NumPy array; anything else as it is."""
  if hasattr(value, 'toarray') and hasattr(value, 'nnz'):
    return value.astype(np.float32).toarray()
  if hasattr(value, 'detach') and hasattr(value, 'cpu'):  # PyTorch's.
    return value.detach().cpu().numpy()
  return value
