"""TensorFlow Federated's fed_cifar100 and shakespeare, without TensorFlow.

`fed_cifar100_{train,test}.h5` hold examples/<client>/{image, label, coarse_label}, and
`shakespeare_{train,test}.h5` examples/<client>/snippets.
"""

import pathlib

from fesem_jax.data import shakespeare, tff
from fesem_jax.data.pool import Examples, Pool, cached_pool
from fesem_jax.utils import array_checks
from fesem_jax.utils.safe_files import reading

_SPLITS = ('train', 'test')
_CIFAR_LABELS = {'fine': ('label', 100), 'coarse': ('coarse_label', 20)}


def load_cifar100(folder: pathlib.Path, labels: str) -> Pool:
  """CIFAR-100 of 500 training and 100 test clients, all of which are clients here.

  The test clients are others than the training clients, though their ids are the same
  numbers: clients are called train_000, ... and test_000, ..., and each is split 80/20.
  `labels` are 'fine' or 'coarse'. Raises `UserError` if a file is absent or damaged.
  """
  paths = paths_of(folder, 'fed_cifar100')
  column, classes = _CIFAR_LABELS[labels]

  def read() -> tuple[dict[str, Examples], None]:
    clients: dict[str, Examples] = {}
    for path, split in zip(paths, _SPLITS, strict=True):
      with reading(path):
        for name, (x, y) in tff.hdf5_clients(path, 'image', column):
          where = f'{path}, client {name}'
          y = y.reshape(-1)
          of_client = x, array_checks.labels(y, where, classes)
          clients[f'{split}_{name:0>3}'] = of_client
    return clients, None

  return cached_pool(folder, f'tff {column} 1', classes, 1 / 255, read, paths)


def load_shakespeare(folder: pathlib.Path, stride: int) -> Pool:
  """Shakespeare by role of a play, from snippets of its text.

  The snippets of each split are joined and cut as those of `texts.load`;
  `stride` is that of `shakespeare.windows`. Roles without an example of both splits are
  left out. Raises `UserError` if a file is absent or damaged, or no role has enough.
  """
  paths = paths_of(folder, 'shakespeare')

  def read() -> tuple[dict[str, Examples], dict[str, Examples]]:
    train, test = (_roles(path, stride) for path in paths)
    roles = [n for n in train if len(train[n][1]) and n in test and len(test[n][1])]
    return {n: train[n] for n in roles}, {n: test[n] for n in roles}

  name, classes = f'tff shakespeare {stride} 1', len(shakespeare.VOCABULARY)
  return cached_pool(folder, name, classes, 1.0, read, paths)


def _roles(path: pathlib.Path, stride: int) -> dict[str, Examples]:
  """Name -> examples of each role; some have none."""
  roles = {}
  with reading(path):
    for name, (snippets,) in tff.hdf5_clients(path, 'snippets'):
      texts = [s.decode() if isinstance(s, bytes) else s for s in snippets.reshape(-1)]
      roles[name] = shakespeare.windows(
        shakespeare.tokens(shakespeare.merged(texts)), stride
      )
  return roles


def paths_of(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
  """The files of both splits; raises `UserError` if one is absent."""
  return [folder / f'{name}_{split}.h5' for split in _SPLITS]
