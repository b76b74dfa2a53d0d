r"""Inspects and converts federated data.

  fesem-data --dataset=femnist --data_dir=DIR
  fesem-data --dataset=femnist --data_dir=DIR --output=femnist
  fesem-run --dataset='saved(femnist)'

Prints sizes, classes, ranges and duplicates, as `data.describe` returns them.
"""

import dataclasses
import pathlib

from absl import flags

from fesem_jax import data
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import own_files, sources
from fesem_jax.utils.errors import check

from . import flags as experiment_flags
from .start import no_positional, start


def draw(train: FederatedData, folder: pathlib.Path) -> None:
  """Draws classes and sizes of clients into the folder."""
  from fesem_jax import plots  # Raises UserError without matplotlib.

  f, info = flags.FLAGS, train.info
  counts = data.label_counts(train)
  about = info.clusters, info.cluster_names, info.class_names
  frame = plots.class_counts(counts, *about)
  title = f'{f.dataset}: training examples of clients'
  figure = plots.partitions({f.partition or 'clients': frame}, title)
  print(*plots.save(figure, folder / 'clients'))


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  chosen = experiment_flags.data_choice()
  dataset, task, partition, rounds, _ = (
    chosen.pop(name)
    for name in ('dataset', 'task', 'partition', 'drift_rounds', 'drift_start')
  )
  check(not rounds, 'drift_rounds: is not for fesem-data; leave it out')
  names = 'seed', 'num_clients', 'examples_per_client'
  generated = {name: chosen[name] for name in names}
  pool = sources.read(dataset, f.data_dir, task=task, **generated)
  train, test = data.federate(pool, partition, **chosen)
  print(data.describe(train, test).to_string(float_format='{:.6g}'.format))
  if f.output:
    folder = pathlib.Path(f.output)
    own_files.save(folder, own_files.from_splits(train, test) if partition else pool)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB; use --dataset='saved({folder})'")
  if f.plots:
    draw(train, pathlib.Path(f.plots))


@dataclasses.dataclass(frozen=True)
class Output:
  """Files to write.

  Attributes:
    output: Folder for the data set or, with --partition, its clients.
    plots: Folder for figures of classes, sizes of clients, and images.
  """

  output: str = ''
  plots: str = ''


if __name__ == '__main__':
  experiment_flags.define('data', 'data_dir', Output)
  start(main)
