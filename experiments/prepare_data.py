r"""Inspects, subsamples, converts and verifies federated data.

  fesem-prepare-data --dataset=femnist --data_dir=DIR
  fesem-prepare-data --dataset=femnist --data_dir=DIR \
      --min_examples=100 --max_clients=500 --output=femnist500.npz
  fesem-run --dataset=npz:femnist500.npz

Prints clients, examples, classes, sizes and the label skew.
"""

import pathlib
from collections.abc import Sequence

import numpy as np
from absl import flags

from fesem_jax import data, tasks
from fesem_jax.core import feature_range
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import arrays, examples_checks, label_skew
from fesem_jax.data.class_names import class_names
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import UserError

from . import data_tables
from . import flags as experiment_flags
from .start import no_positional, start

_BAR = 40  # Characters of the longest bar.


def describe(train: FederatedData, test: FederatedData) -> str:
  """Description of the data, as text."""
  sizes = np.asarray(train.sizes()) + np.asarray(test.sizes())
  counts = label_skew.label_counts(train)
  of_class = (counts + label_skew.label_counts(test)).sum(axis=0)
  shape = 'x'.join(map(str, train.example_shape))
  classes = [
    f'{(of_class > 0).sum()} of {train.num_classes} classes occur; a class has '
    f'{of_class.min():,} to {of_class.max():,} examples',
    f'classes of a client: median {np.median((counts > 0).sum(axis=1)):g}',
    f'label skew {label_skew.label_skew(counts):.3f} (mean total-variation distance of '
    "a client's classes to all clients'; 0: alike)",
  ]
  if not tasks.TASKS[train.task].has_classes:
    y = np.concatenate([train.compact(train.y), test.compact(test.y)])
    classes = [
      f'targets: {y.shape[1]} an example, from {y.min():.4g} to {y.max():.4g}, mean '
      f'{y.mean():.4g}, standard deviation {y.std():.4g}'
    ]
  features = feature_range.of_features(train.x, train.scale)
  repeated = examples_checks.repeated(train, test)
  lines = [
    f'{train.num_clients:,} clients, {len(train.y):,} training and {len(test.y):,} '
    f'test examples of {shape} {train.x.dtype}, values times {train.scale:.6g}',
    f'values that models see: {features.in_words()}; root mean square of a column '
    f'{features.size.min():.3g} to {features.size.max():.3g}',
    f'{repeated.in_words()}; {100 * repeated.inside:.3g} % of the training examples '
    'occur several times',
    *classes[:1],
    f'examples of a client: {sizes.min()} to {sizes.max()}, median '
    f'{np.median(sizes):g}, mean {sizes.mean():.1f}, standard deviation '
    f'{sizes.std():.1f}',
    *histogram(sizes),
    *classes[1:],
  ]
  if train.info.clusters is not None:
    values, members = np.unique(train.info.clusters, return_counts=True)
    known = ', '.join(f'{v}: {n}' for v, n in zip(values, members, strict=True))
    lines.append(f'true clusters, with clients: {known}')
  return '\n'.join(lines)


def histogram(sizes: np.ndarray) -> list[str]:
  """Client sizes [M] as bars of text."""
  edges = np.unique(np.linspace(sizes.min(), sizes.max() + 1, 9).astype(int))
  counts, _ = np.histogram(sizes, edges)

  def label(low, high):
    return f'{low}-{high - 1}' if high - 1 > low else f'{low}'

  return [
    f'  {label(low, high):>13} {"#" * round(_BAR * n / counts.max()):{_BAR}} {n}'
    for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True)
  ]


def subsample(
  train: FederatedData, test: FederatedData, max_clients: int, seed: int
) -> tuple[FederatedData, FederatedData]:
  """At most so many clients, drawn at random; all of them if it is 0."""
  if not 0 < max_clients < train.num_clients:
    return train, test
  rng = np.random.default_rng([seed, 0])
  kept = np.sort(rng.choice(train.num_clients, max_clients, replace=False))
  return train.reorder(kept), test.reorder(kept)


def _clusters(info: ClientInfo) -> list[str] | None:
  """Names of the true clusters of the clients; None if they are unknown."""
  clusters = info.clusters
  if clusters is not None and info.cluster_names is not None:
    clusters = np.array(info.cluster_names)[clusters]
  return None if clusters is None else clusters.astype(str).tolist()


def check_equal(path: pathlib.Path, a: FederatedData, b: FederatedData) -> None:
  """Raises `UserError` unless the file read back is what was written."""
  same = np.array_equal(a.info.names, b.info.names) and all(
    np.array_equal(getattr(a, name), getattr(b, name)) for name in ('x', 'y', 'offsets')
  )
  # By name: read back, clusters are numbered anew, or texts.
  same = same and _clusters(a.info) == _clusters(b.info)
  if not same or (a.task, a.num_classes, a.scale) != (b.task, b.num_classes, b.scale):
    raise UserError(f'{path} would read back differently; nothing was written.')


def write(path: pathlib.Path, train: FederatedData, test: FederatedData) -> None:
  """Writes the file once a first copy has been read back as it should be."""
  if not path.name:
    raise UserError(f'--output={path} must name a file, e.g. data.npz.')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise UserError(f'Cannot write --output={path}: {e.strerror}.') from e
  with replacing(path) as trial:
    arrays.save(pathlib.Path(trial.name), train, test)
    read = data.load(f'npz:{trial.name}')
    for a, b in zip((train, test), read, strict=True):
      check_equal(path, a, b)


def draw(train: FederatedData, folder: pathlib.Path) -> None:
  """Draws classes and sizes of clients, and examples of images, into the folder."""
  from fesem_jax import plots  # Raises UserError without matplotlib.
  from fesem_jax.plots.example_images import are_images

  f, info, names = flags.FLAGS, train.info, _names(train)
  counts = label_skew.label_counts(train)
  dealt = plots.DealtClients(counts, info.clusters, info.cluster_names)
  title = f'{f.dataset}: training examples of clients'
  panel = {f.partition or 'clients': dealt}
  figures = {'clients': plots.compared_partitions(panel, title, names)}
  if are_images(train.example_shape):
    figures['examples'] = plots.example_images(train, f.dataset, names)
  for what, figure in figures.items():
    print(f'{plots.save(figure, folder / what)[0]} (and .svg)')


def _names(train: FederatedData) -> Sequence[str]:
  """Names of the classes."""
  return class_names(flags.FLAGS.dataset, train.num_classes, train.info.class_names)


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  chosen = experiment_flags.data_choice()
  train, test = data.load(chosen.pop('dataset'), data_dir=f.data_dir, **chosen)
  train, test = subsample(train, test, f.max_clients, f.seed)
  print(describe(train, test))
  if f.output:
    path = pathlib.Path(f.output)
    write(path, train, test)
    size = path.stat().st_size / 2**20
    print(f'{path}: {size:.1f} MiB, read back and equal; use --dataset=npz:{path}')
  if f.tables:
    for path in data_tables.write(pathlib.Path(f.tables), train, test, _names(train)):
      print(path)
  if f.plots:
    draw(train, pathlib.Path(f.plots))


if __name__ == '__main__':
  experiment_flags.define('data', 'partition')
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_integer(
    'max_clients',
    0,
    'Keep at most so many clients, drawn at random; 0: all.',
    lower_bound=0,
  )
  flags.DEFINE_string('output', '', 'Write the data there, as an .npz file.')
  flags.DEFINE_string(
    'plots',
    '',
    'Draw classes and sizes of clients, and examples of images, into this folder.',
  )
  flags.DEFINE_string(
    'tables',
    '',
    'Write clients.csv, classes.csv, features.csv and copies.csv into this folder.',
  )
  start(main)
