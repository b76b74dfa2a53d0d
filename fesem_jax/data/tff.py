"""TensorFlow Federated's files, without TensorFlow (Reddi et al. 2021)."""

import contextlib
import itertools
import pathlib
import sqlite3
from collections import Counter
from collections.abc import Iterator

import numpy as np

from fesem_jax.data.reading import (
  Arrays,
  Clients,
  Request,
  both_splits,
  find,
  join_clients,
  to_bytes,
)
from fesem_jax.tasks import SEQUENCE
from fesem_jax.utils.ranges import Index, checked
from fesem_jax.utils.safe_files import opened, reading

_SPLITS = ('train', 'test')
_SQLITE = 'emnist_all.sqlite'
_EXAMPLES = (
  'SELECT client_id, serialized_example_proto FROM examples '
  'WHERE split_name = ? ORDER BY client_id, rowid'
)
_WORDS, _SENTENCE = 10_000, 20  # Of Stack Overflow.


def _hdf5(path: pathlib.Path, *names: str) -> Iterator[tuple[str, list[np.ndarray]]]:
  """(client, some arrays) of a file."""
  import h5py

  with reading(path), h5py.File(path) as file:
    for client, group in file['examples'].items():
      yield client, [group[name][()] for name in names]


def fed_emnist(folder: pathlib.Path) -> Arrays:
  """FEMNIST by writer, of HDF5 files or the database."""
  splits = []
  for split in _SPLITS:
    path = folder / f'fed_emnist_{split}.h5'
    rows = _hdf5(path, 'pixels', 'label')
    if (folder / _SQLITE).exists() and not path.exists():
      path = folder / _SQLITE
      rows = _sqlite(path, f'all_{split}')
    with reading(path):
      clients = {name: (to_bytes(x), y.ravel()) for name, (x, y) in rows if len(y)}
    splits.append(join_clients(clients))
  return both_splits(*splits)


def _sqlite(path: pathlib.Path, split: str) -> Iterator[tuple[str, list[np.ndarray]]]:
  """(client, pixels [N, 28, 28] and labels [N]) of a database."""
  # TensorFlow Datasets brings the message without TensorFlow.
  from tensorflow_datasets.proto import tf_example_pb2

  connection = sqlite3.connect(f'{path.absolute().as_uri()}?mode=ro', uri=True)
  with contextlib.closing(connection):
    rows = connection.execute(_EXAMPLES, (split,))
    for client, messages in itertools.groupby(rows, lambda row: row[0]):
      with reading(f'{path}, client {client}'):
        parsed = (tf_example_pb2.Example.FromString(message) for _, message in messages)
        examples = [example.features.feature for example in parsed]
        pixels = [np.array(e['pixels'].float_list.value, np.float32) for e in examples]
        labels = [e['label'].int64_list.value[0] for e in examples]
        yield client, [np.stack(pixels).reshape(-1, 28, 28), np.array(labels)]


def fed_cifar100(folder: pathlib.Path, labels: str) -> Arrays:
  """CIFAR-100 of 500 training and 100 test clients, all of which are clients here.

  Test clients differ from training clients of the same id.
  """
  column = {'fine': 'label', 'coarse': 'coarse_label'}[labels]
  clients: Clients = {}
  for split in _SPLITS:
    for client, (x, y) in _hdf5(folder / f'fed_cifar100_{split}.h5', 'image', column):
      clients[f'{split}_{client:0>3}'] = x, y.ravel()
  return join_clients(clients)


def shakespeare(folder: pathlib.Path) -> dict[str, tuple[list[str], list[str]]]:
  """Training and test snippets of each role that has both."""
  train, test = (
    {
      client: [snippet.decode() for snippet in snippets.ravel()]
      for client, (snippets,) in _hdf5(folder / f'shakespeare_{split}.h5', 'snippets')
    }
    for split in _SPLITS
  )
  return {role: (train[role], test[role]) for role in train if role in test}


@checked
def stackoverflow(request: Request, users: Index = 0) -> Arrays:
  """Next words of Stack Overflow by user, from tff_stackoverflow/; users=N draws some.

  An example is the begin, up to 20 words of a sentence, and its end, padded. Tokens are
  0 for padding, 1 to V for words, then unknown words, begin and end. The words are the
  first 10,000 of `stackoverflow.word_count` (a word and its count a line), or the most
  frequent ones of the training sentences.
  """
  import h5py

  folder = find(request, 'tff_stackoverflow')
  with contextlib.ExitStack() as stack:
    groups = []
    for path in (folder / f'stackoverflow_{split}.h5' for split in _SPLITS):
      stack.enter_context(reading(path))
      groups.append(stack.enter_context(h5py.File(path))['examples'])
    sizes = [{u: group['tokens'].size for u, group in g.items()} for g in groups]
    names = sorted(u for u, size in sizes[0].items() if size and sizes[1].get(u))
    if 0 < users < len(names):
      names = sorted(request.rng.choice(names, users, replace=False).tolist())
    splits = [
      {u: [line.decode().split() for line in g[u]['tokens'][()].ravel()] for u in names}
      for g in groups
    ]
  words = _most_frequent(folder / 'stackoverflow.word_count', splits[0])
  places = {word: i for i, word in enumerate(words, 1)}
  train, test = (
    join_clients({user: _encode(lines, places) for user, lines in split.items()})
    for split in splits
  )
  class_names = ('padding', *words, 'unknown', 'begin', 'end')
  return both_splits(train, test) | {'task': SEQUENCE.name, 'class_names': class_names}


def _most_frequent(path: pathlib.Path, train: dict[str, list[list[str]]]) -> list[str]:
  if path.is_file():
    with opened(path) as file:
      lines = file.read().decode('utf-8-sig').splitlines()
      counts = {line.split()[0]: int(line.split()[1]) for line in lines if line}
  else:
    counter = Counter(w for lines in train.values() for line in lines for w in line)
    counts = dict(sorted(counter.items()))
  return sorted(counts, key=lambda word: -counts[word])[:_WORDS]


def _encode(
  sentences: list[list[str]], places: dict[str, int]
) -> tuple[np.ndarray, np.ndarray]:
  """Tokens [N, 20] float32, and those after them [N, 20] int32, -1 for none."""
  unknown, rows = len(places) + 1, np.zeros((len(sentences), _SENTENCE + 1), np.int32)
  for i, sentence in enumerate(sentences):
    words = [places.get(word, unknown) for word in sentence[:_SENTENCE]]
    row = [unknown + 1, *words, unknown + 2][: _SENTENCE + 1]
    rows[i, : len(row)] = row
  following = rows[:, 1:]
  return rows[:, :-1].astype(np.float32), np.where(following > 0, following, -1)
