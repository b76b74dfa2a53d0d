"""`load`: a data set by its name, dealt to clients as its options say."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.types import FederatedData
from fesem_jax.data import deal, partition, sources
from fesem_jax.data.arrays import from_arrays
from fesem_jax.data.pool import Pool, as_task
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError, argument, check_at_least, check_choice

_BY_LABEL = ('dirichlet', 'shards', 'label_permuted')

DEFAULT_NUM_CLIENTS = 100  # Where the data set has no clients of its own.

# Beyond any use; larger numbers would only run out of memory later.
MAX_CLIENTS, MAX_GROUPS = 10**7, 1000
MAX_ALPHA = 1e300  # Gamma variates of a larger one overflow.


def load(
  name: str,
  *,
  source: str = '',
  partition: str = '',
  data_dir: str | os.PathLike[str] = '',
  num_clients: int = 0,
  examples_per_client: int = 0,
  min_examples: int = 0,
  partition_groups: int = 4,
  disjoint_groups: bool = False,
  dirichlet_alpha: float = 0.5,
  classes_per_client: int = 2,
  seed: int = 0,
  arrays: Mapping[str, np.ndarray] | None = None,
  task: str = '',
  **options: Any,
) -> tuple[FederatedData, FederatedData]:
  """Loads a data set and deals it to clients.

  A data set with its own test split (MNIST) deals its training images to the
  clients' training splits and its test images to their test splits by the same
  rule. Natural clients keep the split that their files have (LEAF, TensorFlow
  Federated); other data without a test split is divided 80/20 inside each client.

  Args:
    name: one of `DATASETS`, 'leaf:FOLDER' or 'npz:FILE'.
    source: where it comes from, see `sources.DATASETS`; '' takes the first source
      whose files are in `data_dir`, or else the one that downloads.
    partition: one of `partition.NAMES`; '' is 'natural' where the data set has
      clients of its own and 'iid' elsewhere.
    data_dir: folder of the data; '' is the environment's FESEM_DATA_DIR.
    num_clients: M; 0 is all natural clients, or 100.
    examples_per_client: training examples of each client (of natural clients:
      at most); 0 deals all.
    min_examples: leaves out natural clients with fewer training and test examples
      together.
    partition_groups: k of 'rotated' and 'label_permuted'; the true clusters.
    disjoint_groups: whether these groups divide the images among themselves; if
      False, each holds all of them.
    dirichlet_alpha: concentration of 'dirichlet' and 'unequal'; smaller is more
      skewed.
    classes_per_client: label shards of each client under 'shards'.
    seed: decides everything random.
    arrays: data of one's own, by name as in an npz:FILE (see `arrays.load`): `x`
      [T, ...], `y` [T], `client` [T] and optionally `split` and `cluster`; `name` is
      then only what errors call it.
    task: what models are trained for, a name of `tasks.TASKS`; '' takes that of the
      data, classification for most.
    **options: of single data sets, see `sources.Options`.

  Returns:
    (training split, test split), clients in the same order.

  Raises:
    UserError: naming the argument or file at fault.
  """
  chosen = sources.Options(**options)
  wanted = deal.Partition(
    partition,
    num_clients or DEFAULT_NUM_CLIENTS,
    examples_per_client,
    partition_groups,
    disjoint_groups,
    dirichlet_alpha,
    classes_per_client,
  )
  check_at_least(0, num_clients=num_clients, examples_per_client=examples_per_client)
  check_at_least(0, min_examples=min_examples, seed=seed)
  _check_partition(wanted)
  own = arrays is not None
  sources.check(name, source, chosen, wanted.num_clients, partition_groups, own)
  folder = pathlib.Path(data_dir or os.environ.get('FESEM_DATA_DIR', '') or 'data')

  def rng(stream: int) -> np.random.Generator:
    return prng_streams.host_rng(seed, stream)

  request = sources.Request(
    folder,
    chosen,
    wanted.num_clients,
    deal.with_test(examples_per_client),
    wanted.groups_of_clients(),
    rng(prng_streams.GENERATE),
    task,
  )
  if arrays is None:
    pool = sources.load(name, source, request)
  else:
    pool = from_arrays(argument('name', name), arrays, task)
  pool = as_task(pool, task, argument('name', name))
  wanted = wanted._replace(
    name=partition or ('natural' if pool.client is not None else 'iid')
  )
  _check_pool(name, pool, wanted, min_examples)
  if wanted.name == 'natural':
    return deal.natural_clients(
      pool,
      num_clients,
      examples_per_client,
      min_examples,
      rng(prng_streams.SELECT),
      rng(prng_streams.SPLIT),
    )
  return deal.dealt_clients(
    pool,
    wanted,
    rng(prng_streams.PARTITION),
    rng(prng_streams.SPLIT),
    rng(prng_streams.RELABEL),
  )


def _check_partition(wanted: deal.Partition) -> None:
  """Raises `UserError` on a partition that makes no sense for any data."""
  check_at_least(
    1,
    partition_groups=wanted.num_groups,
    classes_per_client=wanted.classes_per_client,
  )
  if not 0 < wanted.dirichlet_alpha <= MAX_ALPHA:
    raise UserError(
      f'`dirichlet_alpha={wanted.dirichlet_alpha}` must be positive, and at most '
      f'{MAX_ALPHA}.'
    )
  for name, value, most in (
    ('num_clients', wanted.num_clients, MAX_CLIENTS),
    ('partition_groups', wanted.num_groups, MAX_GROUPS),
  ):
    if value > most:
      raise UserError(f'`{name}={value}` must be at most {most}.')
  if wanted.name:
    check_choice('partition', wanted.name, partition.NAMES)


def _check_pool(
  name: str, pool: Pool, wanted: deal.Partition, min_examples: int
) -> None:
  """Raises `UserError` on a partition that makes no sense for these examples."""
  shape = pool.x.shape[1:]
  named = argument('name', name)
  if not shape or 0 in shape:
    raise UserError(f'{named}: an example has shape {shape}, which holds no features.')
  if wanted.name == 'natural' and pool.client is None:
    others = ', '.join(n for n in partition.NAMES if n != 'natural')
    raise UserError(
      f'`partition=natural`: {named} has no clients of its own; choose one of {others}.'
    )
  if wanted.name in _BY_LABEL and pool.task != CLASSIFICATION.name:
    raise UserError(
      f'`partition={wanted.name}` deals examples by their labels, but {named} is for '
      f'{pool.task}; choose another partition.'
    )
  if wanted.name == 'rotated' and pool.x.ndim < 3:
    raise UserError(f'`partition=rotated` needs images, which {named} does not hold.')
  if wanted.name == 'rotated' and pool.x.shape[1] != pool.x.shape[2]:
    raise UserError(
      f'`partition=rotated` needs square images; those of {named} are '
      f'{pool.x.shape[1]} by {pool.x.shape[2]}.'
    )
  if min_examples and wanted.name != 'natural':
    raise UserError(
      f'`min_examples` chooses natural clients; it does not apply to '
      f'`partition={wanted.name}`.'
    )
  if wanted.grouped:
    partition.check_groups(wanted.num_clients, wanted.num_groups)
  if wanted.name == 'natural':
    return
  # Groups that each hold all examples have as many copies of them.
  copies = wanted.num_groups if wanted.grouped and not wanted.disjoint_groups else 1
  for option in ('num_clients', 'classes_per_client'):
    value = getattr(wanted, option)
    if value > len(pool.y) * copies:
      raise UserError(
        f'`{option}={value}` is more than the {len(pool.y)} training examples there '
        'are to deal; lower it.'
      )
