"""The result of a loader, before examples are split among clients."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.data import cache
from fesem_jax.tasks import CLASSIFICATION, MULTILABEL, SEQUENCE, TASKS
from fesem_jax.utils.array_checks import has_channels_first
from fesem_jax.utils.errors import UserError, argument, check
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.stored_rows import Rows, changed

Examples = tuple[np.ndarray, np.ndarray]  # x [N, ...], y [N, ...] of one client.


class Pool(NamedTuple):
  """The examples of a data set.

  Attributes:
    x: [T, ...] uint8 or float32 features, in memory or in the cache.
    y: [T] integer labels, or other targets of the task as `FederatedData` has them.
    num_classes: L.
    scale: `x * scale` is what models see.
    test_x: the data set's own test examples, or None.
    test_y: their labels, or None.
    client: [T] integer natural client of each example, or None.
    names: names of the natural clients, or None.
    clusters: true cluster of each natural client, a number or a name, or None.
    test_client: natural client of each test example; None where the data set
      does not split its clients' examples itself.
    cluster_names: see `ClientInfo`.
    task: what `y` is for; see `tasks.TASKS`.
    class_names: see `ClientInfo`.
    is_text: whether x [T, S] are tokens and y the one that follows them.
    are_tokens: whether x [T, S] are tokens, of whatever targets.
    feature_names: of the F columns of x [T, F], for warnings, or None.
    of_clusters: whether `client` are the known clusters, as no clients are known.
    weights: [M] float32 of each natural client, or None; see `ClientInfo`.
  """

  x: Rows
  y: np.ndarray
  num_classes: int
  scale: float
  test_x: Rows | None = None
  test_y: np.ndarray | None = None
  client: np.ndarray | None = None
  names: np.ndarray | None = None
  clusters: np.ndarray | None = None
  test_client: np.ndarray | None = None
  cluster_names: tuple[str, ...] | None = None
  task: str = CLASSIFICATION.name
  class_names: tuple[str, ...] | None = None
  is_text: bool = False
  are_tokens: bool = False
  of_clusters: bool = False
  feature_names: tuple[str, ...] | None = None
  weights: np.ndarray | None = None


def as_task(pool: Pool, task: str, named: str) -> Pool:
  """A pool for another task than its own, where its data say what that means.

  Of two classes, the second becomes the one label of 'multilabel'. Text of which only
  the character behind each window is to be predicted also has the next character at
  every position of the window. `task` is a name of `tasks.TASKS`; '' leaves the pool as
  it is. Raises `UserError`, which calls the data set `named`, on an unknown task, or
  one that the data are not for.
  """
  if not task:
    return pool
  check_choice('task', task, tuple(TASKS))
  if task == pool.task:
    return pool
  two_classes = pool.task == CLASSIFICATION.name and pool.num_classes == 2
  if task == MULTILABEL.name and two_classes:
    test = None if pool.test_y is None else pool.test_y[:, None]
    names = pool.class_names and pool.class_names[1:]
    return pool._replace(
      y=pool.y[:, None], test_y=test, task=task, num_classes=1, class_names=names
    )
  if not (pool.is_text and task == SEQUENCE.name):
    raise UserError(
      f'{argument("task", task)} does not fit {named}, which is for {pool.task}; leave '
      'it out.'
    )

  def next_tokens(x: Rows | None, y: np.ndarray | None) -> np.ndarray | None:
    if x is None or y is None:
      return None
    return np.concatenate([np.asarray(x)[:, 1:], y[:, None]], axis=1).astype(np.int32)

  y, test_y = next_tokens(pool.x, pool.y), next_tokens(pool.test_x, pool.test_y)
  assert y is not None
  return pool._replace(y=y, test_y=test_y, task=task)


def channels_last(x: np.ndarray) -> np.ndarray:
  """Images [T, C, H, W] of PyTorch as [T, H, W, C] or, gray ones, [T, H, W]."""
  return np.ascontiguousarray(x[:, 0] if x.shape[1] == 1 else np.moveaxis(x, 1, -1))


def with_channels_last(pool: Pool) -> Pool:
  """The pool with the channels of its images moved to the last axis.

  A pool of anything but images with channels first is returned as it is.
  """
  first = pool.x.shape[1:]
  if not has_channels_first(first):
    return pool
  x = changed(pool.x, channels_last)
  test_x = None if pool.test_x is None else changed(pool.test_x, channels_last)
  return pool._replace(x=x, test_x=test_x)


def from_clients(
  train: dict[str, Examples],
  test: dict[str, Examples] | None,
  *,
  where: object,
  num_classes: int,
  scale: float,
) -> Pool:
  """Makes a pool of natural clients, in the order of their names.

  Both dicts are emptied, so that no example is in memory twice.

  Args:
    train: name -> examples.
    test: the same for test examples, or None.
    where: file or folder they come from, for errors.
    num_classes: L.
    scale: see `Pool`.

  Returns:
    The pool.

  Raises:
    UserError: if a split holds nothing, a client has test examples only, or the
      examples of two clients have different shapes.
  """
  names = np.array(sorted(train))
  first = train[names[0]]
  for each in (train, test or {}):
    for name, arrays in each.items():
      if name not in train:
        raise UserError(
          f'{where}: {name} has test examples but no training '
          'examples; remove it from the test split.'
        )
      for array, other in zip(arrays, first, strict=True):
        shapes = f'{array.shape[1:]} in place of {other.shape[1:]}'
        check(array.shape[1:] == other.shape[1:], f'{where}, {name}: shape {shapes}')
  x, y, client = _flatten(train, names)
  test_x = test_y = test_client = None
  if test is not None:
    test_x, test_y, test_client = _flatten(test, names)
  return Pool(
    x, y, num_classes, scale, test_x, test_y, client, names, test_client=test_client
  )


def _flatten(
  clients: dict[str, Examples], names: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  sizes = [len(clients[n][1]) if n in clients else 0 for n in names]
  example, target = next(iter(clients.values()))
  # Whole numbers of one client may stand beside fractions of another.
  of_x, of_y = (
    np.result_type(*{held[i].dtype for held in clients.values()}) for i in (0, 1)
  )
  x = np.empty((sum(sizes), *example.shape[1:]), of_x)
  kind = np.float32 if of_y.kind == 'f' else np.int32
  y = np.empty((sum(sizes), *target.shape[1:]), kind)
  at = 0
  for name, size in zip(names, sizes, strict=True):
    if size:
      x[at : at + size], y[at : at + size] = clients.pop(name)
    at += size
  return x, y, np.repeat(np.arange(len(names)), sizes)


_ARRAYS = ('x', 'y', 'test_x', 'test_y', 'client', 'names', 'test_client')


def cached_pool(
  folder: pathlib.Path,
  name: str,
  num_classes: int,
  scale: float,
  read: Callable[[], tuple[dict[str, Examples], dict[str, Examples] | None]],
  paths: list[pathlib.Path],
  key: Callable[[], str] | None = None,
  task: str = CLASSIFICATION.name,
) -> Pool:
  """Makes a pool of natural clients, whose arrays are cached if they are large.

  Args:
    folder: of the files.
    name: of what is read; the cache's name and key depend on it.
    num_classes: L; 0 counts the classes, targets or tokens of the data.
    scale: see `Pool`.
    read: reads the training and test examples of each client.
    paths: files that are read.
    key: digest of what is read; by default of the files' contents.
    task: what the targets are for; a name of `tasks.TASKS`.

  Raises:
    UserError: as `from_clients`, or if a file is absent.
  """

  def build() -> dict[str, Any]:
    pool = from_clients(*read(), where=folder, num_classes=0, scale=scale)
    arrays = {field: getattr(pool, field) for field in _ARRAYS}
    return {field: a for field, a in arrays.items() if a is not None}

  key = key or (lambda: cache.digest(paths, name))
  size = cache.total_size(paths)
  arrays = cache.cached(folder, name, key, size, build, stored=('x', 'test_x'))
  if not (classes := num_classes):
    y = np.concatenate([arrays[f] for f in ('y', 'test_y') if f in arrays])
    classes = TASKS[task].count_outputs(y)
  return Pool(num_classes=classes, scale=scale, task=task, **arrays)
