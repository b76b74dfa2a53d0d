"""Examples before they are dealt to clients, and two doors for a user's own."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fesem_jax.core.federated_data import check_targets, features, scale_of
from fesem_jax.tasks import CLASSIFICATION, TASKS
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  import pandas

_MISSING = ('', 'nan', 'None', 'NaT', '<NA>', 'inf')
_TRAIN, _TEST = ('0', 'train', 'False'), ('1', 'test', 'True')
_CLIENT_NAMES = 'user', 'user_id', 'writer'  # Other names of the column `client`.
_MAX_TEXTS = 1000  # Different texts of a column that becomes one-hot columns.


@dataclasses.dataclass(frozen=True)
class Pool:
  """The examples of a data set.

  Attributes:
    x: [T, ...] uint8 or float32 features; models see `x * scale`.
    y: [T] int32 labels, or targets of the task as `FederatedData` has them.
    task: a key of `tasks.TASKS`.
    num_classes: L, outputs of a model.
    scale: factor of x.
    class_names: names of classes 0, 1, ..., or None.
    client: [T] int natural clients, or None.
    names: [M] strings, names of the natural clients, or None.
    test: [T] bool, True for the data's own test examples, or None.
    cluster: [T] int true clusters, or None.
    cluster_names: names of clusters 0, 1, ..., or None.
    weight: [M] float32 weights of natural clients, or None.
    server_test: x [S, ...] and y [S] of the server's own test set, or None.
  """

  x: np.ndarray
  y: np.ndarray
  task: str
  num_classes: int
  scale: float
  class_names: tuple[str, ...] | None = None
  client: np.ndarray | None = None
  names: np.ndarray | None = None
  test: np.ndarray | None = None
  cluster: np.ndarray | None = None
  cluster_names: tuple[str, ...] | None = None
  weight: np.ndarray | None = None
  server_test: tuple[np.ndarray, np.ndarray] | None = None

  @property
  def labels(self) -> np.ndarray:
    """[T] classes; 0 where targets are no classes."""
    is_classes = self.task == CLASSIFICATION.name
    return self.y if is_classes else np.zeros(len(self.y), np.int32)

  @property
  def masks(self) -> list[np.ndarray]:
    """[T] bool of the training and, if these are apart, of the test examples."""
    if self.test is None:
      return [np.ones(len(self.y), bool)]
    return [~self.test, self.test]


def from_arrays(
  x: Any,
  y: Any,
  *,
  client: Any = None,
  split: Any = None,
  cluster: Any = None,
  weight: Any = None,
  task: str = '',
  num_classes: int = 0,
  scale: float | None = None,
  class_names: Sequence[str] | None = None,
  server_test: tuple[Any, Any] | None = None,
) -> Pool:
  """Builds a pool from arrays of NumPy, or what `np.asarray` reads.

  Numbered clients and clusters are in the order of their numbers; names, also of
  classes without `class_names`, in alphabetical order.

  Args:
    x: [T, ...] numbers; images are [T, H, W] or [T, H, W, C].
    y: [T] labels from 0, labels -1 and 1, or names of classes; [T] or [T, D] numbers of
      a regression; [T, L] zeros and ones of several labels; [T, S] next tokens of
      sequences, -1 for none.
    client: [T] numbers or names; without them, a partition deals the examples.
    split: [T] 0 or 'train', 1 or 'test'; without it each client is split 80/20.
    cluster: [T] numbers or names of the true clusters.
    weight: [T] numbers, one for each client, for `weighting=by_weight`.
    task: a key of `tasks.TASKS`; '' is classification.
    num_classes: L; by default from y.
    scale: models see `x * scale`; by default 1, and 1/255 for uint8 images.
    class_names: names of classes 0, 1, ....
    server_test: x and y of a test set of the server, which belongs to no client.

  Raises:
    UserError: naming the argument and the row at fault.
  """
  task = task or CLASSIFICATION.name
  ranges.check_choice('task', task, tuple(TASKS))
  roles = {'client': client, 'split': split, 'cluster': cluster, 'weight': weight}
  columns = {r: np.asarray(values) for r, values in roles.items() if values is not None}
  x = _features('x', x)
  names = tuple(map(str, class_names)) if class_names is not None else ()
  y, num_classes, names = _targets('y', y, task, num_classes, names)
  check_targets(x.shape, y, task, 'y')
  scale = scale_of(x, 'x') if scale is None else float(scale)
  for role, values in columns.items():
    valid = values.shape == (len(x),)
    check(valid, f'{role}: shape {values.shape}; x has {len(x)} rows')
  fields = _clients(columns)
  if 'split' in columns:
    texts = columns['split'].astype(str)
    test, train = np.isin(texts, _TEST), np.isin(texts, _TRAIN)
    row = int((test | train).argmin())
    check((test | train)[row], f'split: row {row} is {texts[row]!r:.20}; 0, 1 or names')
    check(test.any() and train.any(), 'split: training or test examples are missing')
    if 'client' in columns:
      absent = np.setdiff1d(fields['client'], fields['client'][train])
      lacking = fields['names'][absent[:3]].tolist()
      check(not lacking, f'split: clients {lacking} have no training examples')
    fields['test'] = test
  if server_test is not None:
    server_y, *_ = _targets('server_test', server_test[1], task, num_classes, names)
    fields['server_test'] = _features('server_test', server_test[0]), server_y
  return Pool(x, y, task, num_classes, scale, names or None, **fields)


def _features(name: str, x: Any) -> np.ndarray:
  x = features(x, name)
  check(x.ndim > 1 and len(x), f'{name}: has shape {x.shape}; give [T, ...]')
  first = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] > 4
  check(not first, f'{name}: has channels first; use x.transpose(0, 2, 3, 1)')
  return x


def _targets(
  name: str, y: Any, task: str, num_classes: int, class_names: tuple[str, ...]
) -> tuple[np.ndarray, int, tuple[str, ...]]:
  """Targets as `FederatedData` has them, the number of outputs, and class names."""
  check(not np.ma.is_masked(y), f'{name}: is masked; drop or fill the masked values')
  y = np.asarray(y)
  if task == CLASSIFICATION.name:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    shape = f'{name}: shape {y.shape}; give labels, as y.argmax(1), or task=multilabel'
    check(y.ndim == 1, shape)
    if y.dtype.kind not in 'biuf':
      codes, texts = numbered(y, name)
      class_names = class_names or texts
      unknown = sorted({*texts} - {*class_names})
      check(not unknown, f'{name}: {unknown[:3]} are not in class_names')
      y = np.array([class_names.index(text) for text in texts])[codes]
    elif y.size and y.min() == -1 and np.isin(y, (-1, 1)).all():
      y, class_names = (y > 0).astype(int), class_names or ('-1', '1')
  count = num_classes or len(class_names) or None
  y = TASKS[task].targets(y, name, count)
  return y, int(count or TASKS[task].count_outputs(y)), class_names


def _clients(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """The fields of a pool that are of clients and clusters."""
  fields: dict[str, Any] = {}
  if 'cluster' in columns:
    fields['cluster'], names = numbered(columns['cluster'], 'cluster')
    plain = names == tuple(map(str, range(len(names))))
    fields['cluster_names'] = None if plain else names
  if 'client' not in columns:
    check('weight' not in columns, 'weight: needs client; give it, or leave weight out')
    return fields
  client, names = numbered(columns['client'], 'client')
  fields |= {'client': client, 'names': np.array(names)}
  first = np.unique(client, return_index=True)[1]
  for role in {'cluster', 'weight'} & columns.keys():
    mixed = columns[role][first][client] != columns[role]
    name = names[client[mixed.argmax()]]
    check(not mixed.any(), f'{role}: client {name!s:.40} has several values')
  if 'weight' in columns:
    fields['weight'] = columns['weight'][first].astype(np.float32)
  return fields


def numbered(values: Any, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
  """[T] codes of the values of a column, and the values in order, as texts."""
  import pandas  # Slow to import.

  codes, distinct = pandas.factorize(pandas.Series(np.asarray(values)), sort=True)
  texts = tuple(map(str, distinct))
  blank = np.isin(codes, [-1, *(i for i, t in enumerate(texts) if t in _MISSING)])
  check(not blank.any(), f'{name}: row {blank.argmax()} is missing; drop or fill it')
  check(len({*texts}) == len(texts), f'{name}: mixes numbers and texts; .astype(str)')
  return codes, texts


def from_frame(
  df: 'pandas.DataFrame',
  *,
  label: str = '',
  client: str = '',
  split: str = '',
  cluster: str = '',
  weight: str = '',
  drop: Sequence[str] = (),
  **options: Any,
) -> Pool:
  """Builds a pool from the columns of a data frame.

  Names of columns with a role match in any case. All other columns are features;
  texts become one-hot columns.

  Args:
    df: a row for each example.
    label: column of y; by default 'y', or 'label'.
    client: column of clients; by default 'client', 'user', 'user_id' or 'writer', if
      there is one; so are `split` and `cluster`.
    split: column of 'train' and 'test', or 0 and 1.
    cluster: column of true clusters.
    weight: column of the weights of clients.
    drop: columns to leave out.
    **options: other arguments of `from_arrays`.

  Raises:
    UserError: naming the columns at fault.
  """
  import pandas  # Slow to import.

  names = {'client': client, 'split': split, 'cluster': cluster}
  roles = {role: _column(df, name or role, bool(name)) for role, name in names.items()}
  aliases = (_column(df, name, False) for name in _CLIENT_NAMES)
  roles['client'] = roles['client'] or next(filter(None, aliases), '')
  roles['y'] = _column(df, label or 'y', bool(label)) or _column(df, 'label', True)
  roles['weight'] = _column(df, weight, True) if weight else ''
  roles = {role: column for role, column in roles.items() if column}
  x = df.drop(columns=[*roles.values(), *(_column(df, name, True) for name in drop)])
  missing = x.columns[x.isna().any()].tolist()
  check(not missing, f'columns: {missing[:3]} have missing values; use df.dropna()')
  texts = x.select_dtypes(['object', 'string', 'category']).columns
  many = [name for name in texts if x[name].nunique() > _MAX_TEXTS]
  check(not many, f'columns: {many[:3]} have over {_MAX_TEXTS} texts; drop them')
  shares = x[texts].apply(pandas.to_numeric, errors='coerce').notna().mean()
  mixed = shares.index[shares > 0.5].tolist()
  check(not mixed, f'columns: {mixed[:3]} are numbers as texts; use pandas.to_numeric')
  x = pandas.get_dummies(x, dtype=np.float32)
  odd = [name for name in x if x[name].dtype.kind not in 'biuf']
  check(not odd, f'columns: {odd[:3]} are neither numbers nor texts; drop them')
  arrays = {role: df[column].to_numpy() for role, column in roles.items()}
  return from_arrays(x.to_numpy(np.float32), **arrays, **options)


def _column(df: 'pandas.DataFrame', name: str, needed: bool) -> str:
  """The column of a name, whatever its case is; '' if there is none."""
  if name in df.columns:
    return name
  similar = [column for column in df.columns if str(column).lower() == name.lower()]
  check(len(similar) < 2, f'columns: {similar[:3]} differ by case; name one of them')
  check(similar or not needed, f'columns: no {name!r:.30} in {[*df.columns]!s:.50}')
  return (similar or [''])[0]
