"""Parts, phases, weights, true groups and a table of splits of clients."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.client_info import checked_weights
from fesem_jax.core.federated_data import FederatedData, Groups
from fesem_jax.data.partitions.partition import Rows, split_each
from fesem_jax.tasks import TASKS
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  import pandas

Pair = tuple[FederatedData, FederatedData]


def hold_out(train: FederatedData, seed: int = 0) -> Pair:
  """Training and validation split: 80/20 of each client's training examples.

  `train` is on the host. `seed` decides which examples are held out; with
  `test_rows='last'`, the last ones are. A client with a single example trains on it.
  """
  rng = prng_streams.host_rng(seed, prng_streams.HOLD_OUT)
  rows, held_out = split_each(rng, _rows_of(train), train.info.in_order)
  validation = dataclasses.replace(_subset(train, held_out), attack=None)
  return _subset(train, rows), validation


@ranges.checked
def hold_out_clients(
  train: FederatedData, test: FederatedData, fraction: ranges.Share, seed: int = 0
) -> tuple[Pair, Pair]:
  """(Training, test) of the remaining clients, and of a `fraction` that is set aside.

  `train` and `test` are splits of the same clients, on the host; `seed` draws them.
  """
  count = round(fraction * train.num_clients)
  valid = 0 < count < train.num_clients
  check(valid, f'fraction: {fraction} sets aside none or all of {train.num_clients}')
  rng = prng_streams.host_rng(seed, prng_streams.UNSEEN)
  order = rng.permutation(train.num_clients)
  seen, unseen = np.sort(order[count:]), np.sort(order[:count])
  remaining = train.reorder(seen), test.reorder(seen)
  return remaining, (train.reorder(unseen), test.reorder(unseen))


@ranges.checked
def first_examples(
  train: FederatedData, count: ranges.Count, seed: ranges.Seed = 0
) -> FederatedData:
  """The training split, on the host, with `count` random examples of each client.

  A client with fewer keeps all. A larger count only adds examples; shapes do not
  change, so that compiled programs fit every count.
  """
  few_rows = []
  for client, rows in zip(np.asarray(train.client_ids), _rows_of(train), strict=True):
    rng = prng_streams.host_rng(seed, prng_streams.FIRST_EXAMPLES, int(client))
    few_rows.append(rows[rng.permutation(len(rows))[:count]])
  return _subset(train, few_rows, len(train.y), train.max_examples)


def _rows_of(data: FederatedData) -> Rows:
  offsets = np.asarray(data.offsets)
  return np.split(np.arange(offsets[-1]), offsets[1:-1])


def _subset(
  data: FederatedData, rows: Rows, length: int = 0, max_examples: int = 0
) -> FederatedData:
  """The same clients with some of their rows, padded to a length."""
  sizes = [len(r) for r in rows]
  flat = np.concatenate([*rows, np.zeros(max(0, length - sum(sizes)), np.int64)])
  return dataclasses.replace(
    data,
    x=data.compact(data.x)[flat],
    y=data.compact(data.y)[flat],
    offsets=np.append(0, np.cumsum(sizes)).astype(np.int32),
    max_examples=max_examples or max(1, *sizes),
    shard_rows=None,
  )


class Phase(NamedTuple):
  """The training and test split, on the host, from a round on until the next phase."""

  first_round: int  # from 1
  train: FederatedData
  test: FederatedData


def check_phases(phases: Sequence[Phase]) -> None:
  """Raises `UserError` unless phases follow round 1 and differ in values alone."""
  firsts = [phase.first_round for phase in phases]
  rise = firsts[0] == 1 and all(a < b for a, b in itertools.pairwise(firsts))
  check(rise, f'later_phases: must begin after round 1 and rise; got {firsts[1:]}')
  for phase in phases[1:]:
    same = [_form(split) for split in phase[1:]] == [_form(s) for s in phases[0][1:]]
    where = f'later_phases: data of round {phase.first_round}'
    check(same, f'{where} have other clients, sizes or types; change values alone')


def _form(split: FederatedData) -> tuple[object, ...]:
  """The form that all phases share, so that the same programs serve them."""
  shapes = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(split)]
  arrays = split.client_ids, split.offsets, split.info.names
  return jax.tree.structure(split), shapes, [np.asarray(x).tolist() for x in arrays]


def with_weights(weights: Any, train: FederatedData) -> FederatedData:
  """The training split with `weights` of its clients, for `weighting=by_weight`.

  `weights` are by name, or [M] in the order of clients. Raises `UserError` on others.
  """
  if isinstance(weights, Mapping):
    by_name = {str(name): weight for name, weight in weights.items()}
    lacking = [name for name in train.info.names.astype(str) if name not in by_name]
    check(not lacking, f'weighting: clients {lacking[:3]!s:.60} have no weight')
    weights = [by_name[name] for name in train.info.names.astype(str)]
  floats = checked_weights(weights, 'weighting')
  fits = floats.shape == (train.num_clients,)
  check(fits, f'weighting: shape {floats.shape}; there are {train.num_clients} clients')
  info = dataclasses.replace(train.info, weights=floats)
  return dataclasses.replace(train, info=info, weights=floats)


def with_true_groups(
  train: FederatedData, names: np.ndarray | None = None
) -> FederatedData:
  """The training split with the true groups of its clients, for the oracle.

  `names` are the names of all groups; None takes `train.info`'s. Raises `UserError` if
  no true clusters are known.
  """
  truth = train.info.clusters
  check(truth is not None, 'oracle: the data have no true groups; e.g. rotated has')
  names = np.unique(np.asarray(truth) if names is None else names)
  ids = np.searchsorted(names, np.asarray(truth))
  return dataclasses.replace(train, groups=Groups(ids.astype(np.int32), len(names)))


def phases_with_true_groups(phases: Sequence[Phase]) -> list[Phase]:
  """Phases whose training splits have true groups, numbered alike in all of them."""
  clusters = [phase.train.info.clusters for phase in phases]
  truths = [truth for truth in clusters if truth is not None]
  names = np.concatenate(truths) if len(truths) == len(phases) else None
  return [p._replace(train=with_true_groups(p.train, names)) for p in phases]


def describe(train: FederatedData, test: FederatedData) -> 'pandas.DataFrame':
  """Sizes, classes, ranges and duplicates of two splits of the same clients.

  Returns:
    A data frame with the columns `train` and `test`. Features are scaled; `duplicates`
    is the share of examples that occur again, `in train` of those in training.
  """
  import pandas

  columns, in_train = {}, None
  for name, split in (('train', train), ('test', test)):
    x, y = np.asarray(split.x), np.asarray(split.y)
    pairs = zip(x, y, strict=True)
    examples = pandas.Series([hash((a.tobytes(), b.tobytes())) for a, b in pairs])
    in_train = examples if in_train is None else in_train
    sizes = pandas.Series(np.asarray(split.sizes()))
    rows: dict[str, float] = {'clients': len(sizes), 'examples': len(y)}
    for size in ('min', 'median', 'max'):
      rows[f'{size} client'] = sizes.agg(size)
    if TASKS[split.task].has_classes:
      shares = pandas.Series(y[y >= 0]).value_counts(normalize=True)
      rows |= {'classes': len(shares), 'largest class': shares.max()}
    for kind, array, scale in (('features', x, split.scale), ('targets', y, 1.0)):
      # Row by row, as squares take eight times the memory.
      square = np.mean([np.square(row, dtype=np.float64).mean() for row in array])
      values = {'min': array.min(), 'max': array.max(), 'rms': np.sqrt(square)}
      rows |= {f'{kind}, {key}': float(v) * scale for key, v in values.items()}
    rows['duplicates'] = examples.duplicated(keep=False).mean()
    rows['in train'] = examples.isin(in_train).mean()
    columns[name] = rows
  return pandas.DataFrame(columns)


def label_counts(data: FederatedData) -> np.ndarray:
  """[M, L] int64 examples of each class on each client, on the host.

  For sequences, tokens are counted; for a regression, L is 1.
  """
  sizes = np.asarray(data.sizes())
  if not TASKS[data.task].has_classes:
    return sizes.astype(np.int64)[:, None]
  client, y = np.repeat(np.arange(len(sizes)), sizes), np.asarray(data.compact(data.y))
  if y.ndim > 1:  # Tokens of sequences, some of which are to be left out.
    client, y = np.repeat(client, y.shape[1]), y.ravel()
    client, y = client[y >= 0], y[y >= 0]
  counts = np.bincount(
    client * data.num_classes + y, minlength=len(sizes) * data.num_classes
  )
  return counts.reshape(len(sizes), data.num_classes)
