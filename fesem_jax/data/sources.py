"""Sources of each data set."""

import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fesem_jax.data import (
  arrays,
  benchmark_folders,
  celeba,
  cifar,
  diabetes,
  digits,
  hub,
  leaf,
  mnist,
  pictures,
  shakespeare,
  stack_overflow,
  synthetic,
  synthetic_table,
  tables,
  texts,
  tfds,
  tff,
  tff_hdf5,
)
from fesem_jax.data.options import Options, columns_of
from fesem_jax.data.pool import Pool
from fesem_jax.utils.errors import (
  UserError,
  argument,
)
from fesem_jax.utils.safe_files import reading


class Request(NamedTuple):
  """The arguments of a loader.

  Attributes:
    data_dir: folder of all data.
    options: see `Options`.
    num_clients: M of generated data.
    examples: of each generated client, training and test; 0 lets the data set
      decide.
    groups: [M] planted group of each generated client.
    rng: random state of generated data.
    task: what the data are for; '' takes their own.
    natural_clients: of which so many are drawn; 0 is all.
  """

  data_dir: pathlib.Path
  options: Options
  num_clients: int
  examples: int
  groups: np.ndarray
  rng: np.random.Generator
  task: str = ''
  natural_clients: int = 0


class Source(NamedTuple):
  """One place or form that a data set can be loaded from.

  Attributes:
    name: what `load` knows it by.
    load: reads it.
    folder: below the data folder; the source is taken if the folder exists. '' for a
      source that needs no files or downloads them.
  """

  name: str
  load: Callable[[Request], Pool]
  folder: str = ''


def _femnist(load: Callable[[Request], Pool]) -> Callable[[Request], Pool]:
  """FEMNIST with the background that was asked for."""

  def turned(request: Request) -> Pool:
    pool = load(request)
    return pool if request.options.background == 'white' else leaf.invert(pool)

  return turned


def _named_on_hub(request: Request) -> Pool:
  o = request.options
  return hub.load(
    o.hub_name, request.data_dir, o.hub_client_column, o.hub_label_column,
    o.hub_image_side, o.hub_config,
  )  # fmt: skip


def _named_in_tfds(request: Request) -> Pool:
  return tfds.load(request.options.tfds_name, request.data_dir)


_FEMNIST, _CELEBA = 'flwrlabs/femnist', 'flwrlabs/celeba'


def _tfds(name: str) -> Source:
  return Source('tfds', lambda r: tfds.load(name, r.data_dir))


def _torchvision(folder: str) -> Source:
  return Source('torchvision', lambda r: mnist.load(r.data_dir, folder), folder)


def _emnist(request: Request, folder: str) -> Pool:
  return mnist.load_emnist(request.data_dir / folder, request.options.emnist_split)


def _emnist_of_tfds(request: Request) -> Pool:
  split = request.options.emnist_split
  return tfds.load(
    'emnist' if split == 'byclass' else f'emnist/{split}', request.data_dir
  )


def _python(name: str) -> Source:
  def load(r: Request) -> Pool:
    labels = r.options.cifar100_labels if name == 'cifar100' else ''
    return cifar.load_python(name, r.data_dir, labels)

  return Source('python', load, cifar.PYTHON_FOLDERS[name])


def _cifar10() -> tuple[Source, ...]:
  return (
    Source(
      'binary', lambda r: cifar.load('cifar10', r.data_dir), cifar.FOLDERS['cifar10']
    ),
    _python('cifar10'),
    _tfds('cifar10'),
    Source('hub', lambda r: hub.load('uoft-cs/cifar10', r.data_dir)),
  )


def _cifar100() -> tuple[Source, ...]:
  def binary(r: Request) -> Pool:
    return cifar.load('cifar100', r.data_dir, r.options.cifar100_labels)

  def prepared(r: Request) -> Pool:
    columns = {'fine': 'label', 'coarse': 'coarse_label'}
    return tfds.load('cifar100', r.data_dir, columns[r.options.cifar100_labels])

  def of_tff(r: Request) -> Pool:
    labels = r.options.cifar100_labels
    return tff_hdf5.load_cifar100(r.data_dir / 'tff_cifar100', labels)

  def on_hub(r: Request) -> Pool:
    column = f'{r.options.cifar100_labels}_label'
    return hub.load('uoft-cs/cifar100', r.data_dir, label_column=column)

  return (
    Source('binary', binary, cifar.FOLDERS['cifar100']),
    _python('cifar100'),
    Source('tff', of_tff, 'tff_cifar100'),
    Source('tfds', prepared),
    Source('hub', on_hub),
  )


def _shakespeare_of_leaf(request: Request) -> Pool:
  folder = request.data_dir / 'leaf_shakespeare'
  pool = shakespeare.load_leaf(folder, request.options.leaf_users)
  return pool._replace(is_text=True)


def _shakespeare_of_tff(request: Request) -> Pool:
  folder = request.data_dir / 'tff_shakespeare'
  pool = tff_hdf5.load_shakespeare(folder, request.options.text_stride)
  return pool._replace(is_text=True)


def _shakespeare_of_text(request: Request) -> Pool:
  path = request.data_dir / 'tinyshakespeare' / 'input.txt'
  options = request.options
  return texts.load(path, options.text_stride, options.vocabulary or 'leaf')


def _synthetic_table(request: Request) -> Pool:
  r = request
  return synthetic_table.load(
    r.rng, r.num_clients, r.examples, r.groups, r.options, r.task
  )


DATASETS: Mapping[str, tuple[Source, ...]] = {
  'digits': (Source('scikit-learn', lambda r: digits.load()),),
  'diabetes': (Source('scikit-learn', lambda r: diabetes.load()),),
  'mnist': (
    Source('idx', lambda r: mnist.load(r.data_dir), 'mnist'),
    _torchvision(mnist.TORCHVISION), _tfds('mnist'),
  ),
  'mnist_writers': (Source('idx', lambda r: mnist.load_writers(r.data_dir), 'qmnist'),),
  'femnist': (
    Source(
        'leaf', _femnist(lambda r: leaf.load_femnist(
            r.data_dir / 'leaf_femnist', r.options.leaf_users
        )),
        'leaf_femnist',
    ),
    Source(
        'tff', _femnist(lambda r: tff.load_femnist(r.data_dir / 'tff_femnist')),
        'tff_femnist',
    ),
    Source('tff_digits', _femnist(
        lambda r: tff.load_femnist(r.data_dir / 'tff_femnist', digits=True)
    ), 'tff_femnist'),
    Source(
        'hub',
        _femnist(lambda r: hub.load(_FEMNIST, r.data_dir, 'writer_id', 'character')),
    ),
  ),
  'celeba': (
    Source(
        'leaf', lambda r: celeba.load_leaf(
            r.data_dir / 'leaf_celeba', r.options.leaf_users
        ), 'leaf_celeba'
    ),
    Source('original', lambda r: celeba.load_raw(r.data_dir / 'celeba'), 'celeba'),
    Source('hub', lambda r: hub.load(_CELEBA, r.data_dir, 'celeb_id', 'Smiling')),
  ),
  'emnist': (
    Source('idx', lambda r: _emnist(r, 'emnist'), 'emnist'),
    Source('torchvision', lambda r: _emnist(r, 'EMNIST/raw'), 'EMNIST/raw'),
    Source('tfds', _emnist_of_tfds),
  ),
  'fashion_mnist': (
    Source('idx', lambda r: mnist.load(r.data_dir, 'fashion_mnist'), 'fashion_mnist'),
    _torchvision('FashionMNIST/raw'), _tfds('fashion_mnist'),
  ),
  'cifar10': _cifar10(),
  'cifar100': _cifar100(),
  'shakespeare': (
    Source('leaf', _shakespeare_of_leaf, 'leaf_shakespeare'),
    Source('tff', _shakespeare_of_tff, 'tff_shakespeare'),
    Source('text', _shakespeare_of_text, 'tinyshakespeare'),
  ),
  'stackoverflow': (Source('tff', lambda r: stack_overflow.load(
      r.data_dir / 'tff_stackoverflow', r.natural_clients, r.rng
  ), 'tff_stackoverflow'),),
  'tfds': (Source('tfds', _named_in_tfds),),
  'hub': (Source('hub', _named_on_hub),),
  'synthetic': (
    Source('generated', lambda r: synthetic.alpha_beta(
        r.rng, r.num_clients, r.examples, r.options.synthetic_alpha,
        r.options.synthetic_beta,
    )),
  ),
  'synthetic_linear': (
    Source('generated', lambda r: synthetic.linear_clusters(
        r.rng, r.num_clients, r.examples, r.groups, r.options.synthetic_noise, r.task
    )),
  ),
  'synthetic_table': (Source('generated', _synthetic_table),),
  'synthetic_mixture': (
    Source('generated', lambda r: synthetic.mixture(
        r.rng, r.num_clients, r.examples, r.groups, r.options.synthetic_noise
    )),
  ),
}  # fmt: skip


def _table(path: pathlib.Path, request: Request) -> Pool:
  held = tables.of_file(path, columns_of(request.options))
  return arrays.from_arrays(path, held, request.task)


# Data sets that are named with their place, as in npz:FILE.
PREFIXES: Mapping[str, Callable[[pathlib.Path, Request], Pool]] = {
  'leaf': lambda path, r: leaf.load_folder(path, r.task, r.options.leaf_users),
  'npz': lambda path, r: arrays.load(path, r.task),
  'table': _table,
  'images': lambda path, r: pictures.load_folder(
    path, r.options.image_side, r.options.image_groups
  ),
  'text': lambda path, r: texts.load(
    path, r.options.text_stride, r.options.vocabulary or 'data'
  ),
  'pfllib': lambda path, r: benchmark_folders.load_pfllib(path, r.task),
  'flbench': lambda path, r: benchmark_folders.load_fl_bench(path, r.task),
}


def load(name: str, source: str, request: Request) -> Pool:
  """Reads a data set, whose name is a key of `DATASETS`, or PREFIX:PLACE.

  `source` is the name of one of its sources; '' takes the first one whose folder
  exists, or else the one that downloads. Raises a `UserError` that names the argument
  or file at fault.
  """
  named = argument('name', name)
  prefix, colon, place = name.partition(':')
  if colon:
    return PREFIXES[prefix](pathlib.Path(place), request)
  choices = DATASETS[name]
  if source:
    chosen = next(s for s in choices if s.name == source)
  else:
    with reading(argument('data_dir', request.data_dir)):
      present = [
        s for s in choices if not s.folder or (request.data_dir / s.folder).is_dir()
      ]
    if not present:
      wanted = ' or '.join(dict.fromkeys(f'{s.folder}/' for s in choices))
      raise UserError(
        f'{named}: {request.data_dir} holds no {wanted}; point `data_dir` (or '
        'FESEM_DATA_DIR) at the folder that does.'
      )
    chosen = present[0]
  return chosen.load(request)
