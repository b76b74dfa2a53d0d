"""`load`: a data set by its name, dealt to clients as its options say."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from fesem_jax.checks import data as _data_rules  # noqa: F401 - registers them.
from fesem_jax.checks.rules import Data, Deal, find
from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import (
  array_forms,
  deal,
  source_checks,
  sources,
  standardizing,
)
from fesem_jax.data.arrays import from_arrays
from fesem_jax.data.options import Options, columns_of
from fesem_jax.data.partitions import Kind, changes
from fesem_jax.data.partitions.fitting import check_fits, check_used
from fesem_jax.data.partitions.groups import groups_of_clients
from fesem_jax.data.partitions.value import FIELDS, Partition
from fesem_jax.data.phases import Phase
from fesem_jax.data.pool import as_task, with_channels_last
from fesem_jax.tasks import TASKS
from fesem_jax.utils.errors import UserError, argument, check_at_least, check_whole
from fesem_jax.utils.ranges import check_choice


def load(
  name: str,
  *,
  partition: str | Kind = '',
  source: str = '',
  data_dir: str | os.PathLike[str] = '',
  seed: int = 0,
  arrays: Any = None,
  task: str = '',
  ignore_checks: Sequence[str] = (),
  **options: Any,
) -> tuple[FederatedData, FederatedData]:
  """Loads a data set and partitions it among clients.

  A data set with its own test split (MNIST) deals its training images to the
  clients' training splits and its test images to their test splits by the same
  rule. Natural clients keep the split that their files have (LEAF, TensorFlow
  Federated); other data without a test split is divided 80/20 inside each client.

  Args:
    name: one of `DATASETS`, 'leaf:FOLDER', 'npz:FILE', 'table:FILE', 'images:FOLDER',
      'text:PLACE', 'pfllib:FOLDER' or 'flbench:FOLDER'.
    partition: how examples are dealt to clients, a value of `fesem_jax.partitions`
      such as `Dirichlet(alpha=0.1)`, or as flags say it: `partition='dirichlet',
      dirichlet_alpha=0.1`. '' is `Natural()` where the data set has clients of its own,
      `InClusters()` where it has known clusters alone, and `Iid()` elsewhere.
    source: where it comes from, see `sources.DATASETS`; '' takes the first source
      whose files are in `data_dir`, or else the one that downloads.
    data_dir: folder of the data; '' is the environment's FESEM_DATA_DIR.
    seed: of all random numbers.
    arrays: your own data, named as in an npz:FILE (see `arrays.load`): `x`
      [T, ...], `y` [T], and optionally `client` [T], without which a partition deals
      them, `split` and `cluster`; `name` is then used in error messages only. Also a
      data frame, a dataset of PyTorch, or the examples of each client; see
      `array_forms.named`.
    task: what models are trained for, a name of `tasks.TASKS`; '' takes that of the
      data, classification for most.
    ignore_checks: ids of checks that say nothing, e.g. 'FJ101'.
    **options: of all partitions, `num_clients` M (0 is all natural clients, or 100)
      and `examples_per_client`, the training examples of each (of natural clients: at
      most; where sizes or labels differ: on average; 0 deals all); flags of a
      `partition` that is a name; options of single data sets, see `options.Options`.

  Returns:
    (training split, test split), clients in the same order.

  Raises:
    UserError: naming the argument or file at fault.
    TypeError: if an option is unknown, or is of a partition that is not a name.
  """
  wanted, *_ = phases = load_phases(
    name, partition=partition, source=source, data_dir=data_dir, seed=seed,
    arrays=arrays, task=task, ignore_checks=ignore_checks, **options,
  )  # fmt: skip
  if len(phases) > 1:
    rounds = ','.join(str(phase.first_round) for phase in phases[1:])
    raise UserError(
      f'{argument("drift_rounds", rounds)} gives data that change over rounds, which '
      'fesem-run and fesem-compare take, and `simulate` as '
      '`callbacks.Drift` (`data.load_phases`); leave it out here.'
    )
  return wanted.train, wanted.test


def load_phases(
  name: str,
  *,
  partition: str | Kind = '',
  source: str = '',
  data_dir: str | os.PathLike[str] = '',
  seed: int = 0,
  arrays: Any = None,
  task: str = '',
  ignore_checks: Sequence[str] = (),
  **options: Any,
) -> list[Phase]:
  """Loads a data set whose groups of clients change at the beginning of some rounds.

  Args:
    name: as of `load`, like all arguments.
    partition: see `load`.
    source: see `load`.
    data_dir: see `load`.
    seed: see `load`.
    arrays: see `load`.
    task: see `load`.
    ignore_checks: see `load`.
    **options: see `load`. `drift_rounds` are rounds, from 2, at which each client draws
      a random new group, as in FedDrift's settings; `drift_start` says the groups until
      then: 'groups' of equal size, or 'one' for all clients.

  Returns:
    The splits of `load` from round 1 on, and the splits from each round on at which
    groups change: clients keep their examples, transformed as the new group requires.

  Raises:
    UserError: see `load`.
    TypeError: see `load`.
  """
  fields = {field: options.pop(field) for field in FIELDS if field in options}
  chosen = Options(**options)
  if isinstance(partition, Kind):
    wanted = partition.flat(**fields)
  else:
    wanted = Partition(partition, **fields)
  check_whole(seed=seed)
  check_at_least(0, seed=seed)
  if task:
    check_choice('task', task, tuple(TASKS))
  own = arrays is not None
  groups = wanted.partition_groups
  source_checks.check(name, source, chosen, wanted.count, groups, own)
  folder = pathlib.Path(data_dir or os.environ.get('FESEM_DATA_DIR', '') or 'data')
  request = sources.Request(
    folder,
    chosen,
    wanted.count,
    deal.with_test(wanted.examples_per_client),
    groups_of_clients(wanted.count, groups),
    prng_streams.host_rng(seed, prng_streams.GENERATE),
    task,
    wanted.num_clients if wanted.name in ('', 'natural') else 0,
  )
  if arrays is None:
    pool = sources.load(name, source, request)
  else:
    where = argument('name', name)
    own_columns = columns_of(chosen)
    pool = from_arrays(where, array_forms.named(arrays, where, own_columns), task)
  pool = with_channels_last(as_task(pool, task, argument('name', name)))
  if chosen.standardize:
    standardizing.check(pool, argument('name', name))
  if not wanted.name:
    known = 'natural' if pool.client is not None else 'iid'
    known = 'cluster' if pool.of_clusters else known
    wanted = dataclasses.replace(wanted, name=known)
  check_fits(wanted, pool, name)
  check_used(wanted, ['partition_groups'] if name in source_checks.PLANTED else [])
  if wanted.name == 'natural':
    phases = [Phase(1, *deal.natural_clients(pool, wanted, seed))]
  elif wanted.name == 'rows':
    phases = [Phase(1, *deal.listed_clients(pool, wanted, seed))]
  else:
    phases = [
      Phase(first_round, *deal.dealt_clients(pool, wanted, seed, groups))
      for first_round, groups in changes.groups_over_rounds(wanted, seed)
    ]
  if chosen.standardize:
    phases = [Phase(p[0], *standardizing.standardized(*p[1:])) for p in phases]
  if 'noisy' in wanted.parts:
    phases = [
      Phase(number, *(changes.with_noise(wanted, s, i, seed) for i, s in enumerate(of)))
      for number, *of in phases
    ]
  _, train, test = phases[0]
  find(Deal(pool.clusters, train), ignore_checks)
  find(Data(train, test), ignore_checks)
  return phases
