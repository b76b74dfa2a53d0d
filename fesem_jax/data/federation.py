"""The training and test splits of clients, from a pool or from a data set's name."""

import copy
import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from fesem_jax.checks import data as _data_rules  # noqa: F401 - registers them.
from fesem_jax.checks.rules import Data, Deal, find
from fesem_jax.core import prng_streams
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import partitions, sources
from fesem_jax.data.partitions.grouped import changed, names_of_groups
from fesem_jax.data.partitions.partition import Context, Partition
from fesem_jax.data.pool import Pool
from fesem_jax.data.splits import Phase
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check


@ranges.checked
def federate(
  pool: Pool,
  partition: str | Partition = '',
  *,
  num_clients: Annotated[int, ranges.Range(0, 10**7)] = 0,
  examples_per_client: ranges.Index = 0,
  seed: ranges.Seed = 0,
  test_rows: Literal['random', 'last'] = 'random',
  standardize: bool = False,
  ignore_checks: Sequence[str] = (),
) -> tuple[FederatedData, FederatedData]:
  """Deals the examples of a pool to clients.

  Test examples of the pool are dealt to test splits by the same rule, or stay with
  natural clients; else each client's examples are split 80/20.

  Args:
    pool: a pool of `from_arrays` or `from_frame`.
    partition: a value of `fesem_jax.partitions`, or its expression; '' is `Natural()`
      for a pool with clients, `InClusters()` with clusters alone, else `Iid()`.
    num_clients: M; 0 takes all natural clients, or 100.
    examples_per_client: training examples of each client (natural ones: at most; of
      other sizes: on average); 0 deals all.
    seed: seed of all random numbers.
    test_rows: 'last' tests on the last fifth of each client's rows.
    standardize: whether columns get mean 0 and deviation 1 over training examples.
    ignore_checks: ids of checks to skip, e.g. 'FJ101'.

  Returns:
    (training split, test split), clients in the same order.

  Raises:
    UserError: if the partition does not fit the pool.
  """
  last = test_rows == 'last'
  fits = not last or pool.test is None
  check(fits, 'test_rows: the data have test examples; leave it')
  dealt = as_partition(partition, pool)
  names, *rows = dealt.splits(pool, seed, num_clients, examples_per_client, last)
  sizes = [np.array([len(r) for r in split]) for split in rows]
  flat = [np.concatenate(split).astype(np.int64) for split in rows]
  count, standards, weights = len(sizes[0]), None, None
  if names is None:
    names = [f'client{i:0{len(str(count - 1))}d}' for i in range(count)]
  groups = dealt.groups_of(count)
  clusters, cluster_names = groups, names_of_groups(dealt)
  if groups is None and pool.cluster is not None:
    cluster_names, row_clusters = pool.cluster_names, pool.cluster[np.concatenate(flat)]
    client = np.concatenate([np.repeat(np.arange(count), n) for n in sizes])
    first = row_clusters[np.unique(client, return_index=True)[1]]
    clusters = first if (first[client] == row_clusters).all() else None
  if isinstance(dealt, partitions.Natural) and pool.weight is not None:
    weights = pool.weight[np.isin(pool.names, names)]  # type: ignore[arg-type]
  if standardize:
    pool, standards = _standardized(pool, flat[0])
  info = ClientInfo(
    np.array(names), clusters, None if clusters is None else cluster_names,
    pool.class_names, weights, standards, last,
  )  # fmt: skip
  labels = np.unique(pool.labels[pool.masks[0]])
  splits = []
  for i in range(2):
    context = Context(seed, i, count, pool.num_classes, labels, pool.scale)
    x, y = _rows(pool.x, flat[i]), pool.y[flat[i]]
    x, y = changed(dealt, x, y, sizes[i], groups, context)
    data = FederatedData.from_arrays(
      x, y, sizes[i], info=info, num_classes=pool.num_classes, scale=pool.scale,
      task=pool.task,
    )  # fmt: skip
    splits.append(data)
  train, test = splits
  if pool.server_test is not None:
    x, y = pool.server_test
    test = test.with_server_test(x.astype(test.x.dtype), y)
  find(Deal(pool.cluster, train), ignore_checks)
  find(Data(train, test), ignore_checks)
  return train, test


def drift(
  pool: Pool,
  partition: str | Partition,
  rounds: Sequence[int],
  start: Literal['groups', 'one'] = 'groups',
  **options: Any,
) -> list[Phase]:
  """Deals a pool to clients whose groups change at some rounds (FedDrift, 2023).

  Clients keep their examples, changed as the new group requires.

  Args:
    pool: see `federate`.
    partition: a partition with groups, such as `Rotated`.
    rounds: rounds, from 2, in which each client draws a random new group.
    start: first groups: those of the partition, or 'one' for all clients.
    **options: other arguments of `federate`.

  Raises:
    UserError: if the partition has no groups, or rounds do not rise from 2.
  """
  ranges.check_choice('drift_start', start, ('groups', 'one'))
  firsts = [1, *rounds]
  valid = all(isinstance(first, int | np.integer) for first in firsts)
  valid = valid and all(a < b for a, b in itertools.pairwise(firsts))
  check(valid, f'drift_rounds: must rise from 2; got {[*rounds]!s:.40}')
  train, _ = splits = federate(pool, partition, **options)
  value = as_partition(partition, pool)
  groups = value.groups_of(train.num_clients)
  check(groups is not None, f'drift_rounds: {value!s:.40} has no groups')
  assert groups is not None
  if start == 'one':
    splits = federate(pool, _regrouped(value, np.zeros_like(groups)), **options)
  phases = [Phase(1, *splits)]
  for i, first in enumerate(rounds):
    rng = prng_streams.host_rng(options.get('seed', 0), prng_streams.DRIFT, i)
    drawn = rng.integers(0, np.max(groups) + 1, train.num_clients)
    phases.append(Phase(first, *federate(pool, _regrouped(value, drawn), **options)))
  return phases


def _regrouped(partition: Partition, groups: np.ndarray) -> Partition:
  """The partition with other groups [M], which change the same rows."""
  new = copy.copy(partition)
  object.__setattr__(new, 'groups_of', lambda num_clients: groups)
  return new


def load(
  dataset: str, *, data_dir: str | os.PathLike[str] = '', task: str = '', **options: Any
) -> tuple[FederatedData, FederatedData]:
  """Loads a data set by its name, as `federate` deals it.

  Args:
    dataset: a name of `sources.SOURCES` with options, such as 'digits' or 'npz(FILE)'.
    data_dir: folder of the data; '' is the environment's FESEM_DATA_DIR, or 'data'.
    task: a key of `tasks.TASKS`; '' takes that of the data.
    **options: arguments of `federate`.
  """
  [(_, train, test)] = load_phases(dataset, data_dir=data_dir, task=task, **options)
  return train, test


def load_phases(
  dataset: str,
  *,
  drift_rounds: Sequence[int] = (),
  drift_start: Literal['groups', 'one'] = 'groups',
  data_dir: str | os.PathLike[str] = '',
  task: str = '',
  partition: str | Partition = '',
  **options: Any,
) -> list[Phase]:
  """`load`, with groups of clients that change at `drift_rounds`; see `drift`."""
  names = 'seed', 'num_clients', 'examples_per_client'
  generated = {name: options[name] for name in names if name in options}
  pool = sources.read(dataset, data_dir, task=task, **generated)
  if drift_rounds:
    return drift(pool, partition, drift_rounds, drift_start, **options)
  check(drift_start == 'groups', 'drift_start: needs drift_rounds; leave it out')
  return [Phase(1, *federate(pool, partition, **options))]


def as_partition(partition: str | Partition, pool: Pool) -> Partition:
  """The partition of an expression; '' is the default of a pool."""
  if partition == '':
    dealt = partitions.Iid() if pool.cluster is None else partitions.InClusters()
    return dealt if pool.client is None else partitions.Natural()
  value = partitions.parse(partition) if isinstance(partition, str) else partition
  check(isinstance(value, Partition), f'partition: got {value!r:.40}; e.g. dirichlet')
  return value


def _rows(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Some rows, those one after the other without a copy, as of a file."""
  first = rows[0] if len(rows) else 0
  if np.array_equal(rows, np.arange(first, first + len(rows))):
    return x[first : first + len(rows)]
  return x[rows]


def _standardized(
  pool: Pool, rows: np.ndarray
) -> tuple[Pool, tuple[np.ndarray, np.ndarray]]:
  """A pool whose columns are standardized over training rows, and their moments."""
  columns = pool.x.ndim == 2 and pool.x.dtype != np.uint8 and pool.task != 'sequence'
  check(columns, f'standardize: needs columns of numbers; x is {pool.x.shape}')
  x = np.asarray(pool.x[rows], np.float64) * pool.scale
  mean, deviation = x.mean(axis=0), x.std(axis=0)
  stay = ((x == 0) | (x == 1)).all(axis=0) | (deviation == 0)
  mean, deviation = np.where(stay, 0, mean), np.where(stay, 1, deviation)
  standards = mean / pool.scale, deviation / pool.scale

  def standardized(x: np.ndarray) -> np.ndarray:
    return ((x.astype(np.float64) * pool.scale - mean) / deviation).astype(np.float32)

  server = pool.server_test and (standardized(pool.server_test[0]), pool.server_test[1])
  x = standardized(pool.x)
  return dataclasses.replace(pool, x=x, scale=1.0, server_test=server), standards
