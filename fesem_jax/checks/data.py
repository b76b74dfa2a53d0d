"""Rules on data: ranges, leaks, tokens, clusters that are lost."""

from collections.abc import Iterator

import numpy as np

from fesem_jax.checks.rules import Data, Deal, rule
from fesem_jax.core.federated_data import FederatedData

# What is read of a split at most.
_ROWS, _NUMBERS, _TRAIN_ROWS, _TEST_ROWS, _COLUMNS = 10_000, 2**21, 200_000, 5000, 64


def _has_tokens(split: FederatedData) -> bool:
  codes = split.x.dtype == np.uint8 and split.x.ndim == 2 and split.scale == 1
  return codes or split.task == 'sequence'


def _sample(split: FederatedData) -> tuple[np.ndarray, np.ndarray]:
  """[n, F] features as models see them and [n, L] targets, from all over the split."""
  size = max(1, int(np.prod(split.example_shape)))
  count = min(len(split.y), _ROWS, max(100, _NUMBERS // size))
  rows = np.unique(np.linspace(0, len(split.y) - 1, count).astype(int))
  x = np.asarray(split.x[rows], np.float64) * split.scale
  return x.reshape(len(rows), -1), np.asarray(split.y[rows]).reshape(len(rows), -1)


@rule(101, bad='data(lambda x: 100 * x)', good='data()')
def far_from_one(data: Data) -> Iterator[str]:
  """Features, or targets of a regression, are far from 1, where SGD often fails."""
  x, y = _sample(data.train)
  parts = {} if _has_tokens(data.train) else {'features': x}
  parts |= {'targets': y} if data.train.task == 'regression' else {}
  for name, values in parts.items():
    if np.sqrt(np.square(values).mean(axis=0)).max(initial=0) > 10:
      low, high = values.min(), values.max()
      yield f'{name} from {low:.4g} to {high:.4g}: standardize, or scale=1/255'


@rule(102, bad='data(test=split(seed=0))', good='data()')
def copied(data: Data) -> Iterator[str]:
  """Test examples are training examples; split before you repeat or augment."""
  train = _bytes_of_rows(data.train, slice(0, _TRAIN_ROWS))
  test = _bytes_of_rows(data.test, slice(0, None, -(-len(data.test.y) // _TEST_ROWS)))
  distinct = set(train)
  share = np.mean([row in distinct for row in test])
  if share > 0.01 + 2 * (1 - len(distinct) / len(train)):
    yield f'{100 * share:.3g} % of the test examples are in training: split first'


def _bytes_of_rows(split: FederatedData, rows: slice) -> list[bytes]:
  """Some columns and the targets of some rows, as one text of bytes for each row."""
  x, y = np.asarray(split.x[rows]), np.asarray(split.y[rows])
  flat = x.reshape(len(x), -1)
  columns = np.unique(np.linspace(0, flat.shape[1] - 1, _COLUMNS).astype(int))
  parts = [flat[:, columns], y.reshape(len(y), -1)]
  texts = [np.ascontiguousarray(part).view(np.uint8) for part in parts]
  joined = np.concatenate(texts, axis=1)
  return joined.view(f'V{joined.shape[1]}').ravel().tolist()


@rule(103, bad='data(test=split(lambda x: 5 * x, seed=1))', good='data()')
def scaled_apart(data: Data) -> Iterator[str]:
  """One split is standardized and the other is not."""
  if _has_tokens(data.train) or min(len(split.y) for split in data) < 20:
    return
  spread = np.stack([_sample(split)[0].std(axis=0) for split in data])
  spread = spread[:, spread.min(axis=0) > 0]
  ratio = np.median(spread[1] / spread[0]) if spread.size else 1.0
  if not 0.4 < ratio < 2.5:
    yield f'test features vary {ratio:.3g} times as much as training ones: scale alike'


@rule(104, bad='text(lambda tokens, i: tokens * (tokens % 5 == 0))', good='text()')
def one_token(data: Data) -> Iterator[str]:
  """One token is most of the text: another alphabet, or padding without target -1."""
  train = data.train
  if _has_tokens(train):
    tokens = np.asarray((train.y if train.task == 'sequence' else train.x)[:_ROWS])
    counts = np.bincount(tokens[tokens >= 0].astype(int), minlength=1)
    if (share := counts.max() / max(1, counts.sum())) > 0.5:
      yield f'token {counts.argmax()} is {share:.0%} of the text: unknown, or padding?'


@rule(105, bad='text(lambda tokens, i: i % 16)', good='text()')
def overlapping(data: Data) -> Iterator[str]:
  """Test windows of a text share targets with training windows of the same client."""
  if data.train.task != 'sequence':
    return
  half, shared = data.train.y.shape[-1] // 2, []
  for i in range(min(5, data.train.num_clients)):
    trained = np.ascontiguousarray(data.train.client(i)[1][:20_000]).tobytes()
    ends = [end for y in data.test.client(i)[1][:4] for end in (y[:half], y[-half:])]
    shared += [end.tobytes() in trained for end in ends]
  if shared and np.mean(shared) > 0.5:
    yield 'test windows overlap with training windows: text_stride must be their length'


@rule(106, bad='deal(clusters=None)', good='deal(clusters=[0, 0, 1, 1])')
def lost_clusters(deal: Deal) -> Iterator[str]:
  """The data have clusters, and clients mix them: agreement cannot be measured."""
  if deal.clusters is not None and deal.train.info.clusters is None:
    yield 'clients mix known clusters, which are lost: partition=cluster+... keeps them'


@rule(
  107, bad='data(lambda x: np.where(np.arange(8) == 3, x[:, :1] > 0, x))', good='data()'
)
def target_in_features(data: Data) -> Iterator[str]:
  """A column of the features is a target, up to its scale."""
  x, y = _sample(data.train)
  if _has_tokens(data.train) or len(x) < 20:
    return
  x, y = (part - part.mean(axis=0) for part in (x, y.astype(np.float64)))
  norms = np.linalg.norm(x, axis=0)[:, None] * np.linalg.norm(y, axis=0)
  same = np.abs(x.T @ y) > (1 - 1e-9) * np.where(norms > 0, norms, np.inf)
  for i in np.flatnonzero(same.any(axis=1))[:1]:
    yield f'column {i} of the features equals the target: leave it out'
