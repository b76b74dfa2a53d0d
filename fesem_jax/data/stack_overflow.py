"""Stack Overflow by user: the next word, from TensorFlow Federated's HDF5 files.

`stackoverflow_{train,test}.h5` hold examples/<user>/tokens, sentences of words that are
separated by spaces. Reddi et al., "Adaptive Federated Optimization", 2021: sentences of
20 words, and the 10,000 most frequent words.
"""

import pathlib
from collections import Counter

import numpy as np

from fesem_jax.data import tff, tff_hdf5
from fesem_jax.data.pool import Examples, Pool, from_clients
from fesem_jax.tasks import SEQUENCE
from fesem_jax.utils.safe_files import opened, reading

LENGTH = 20  # Words of an example.
MOST_WORDS = 10_000
WORD_COUNTS = 'stackoverflow.word_count'
_PADDING = 0  # Before the words; unknown words, begin and end are behind them.


def load(folder: pathlib.Path, num_clients: int, rng: np.random.Generator) -> Pool:
  """Sentences of users of both splits, each with the next word at every position.

  An example is the begin, then the words of a sentence, of which those after the 20th
  are cut off, and its end; shorter ones are padded. Tokens are 0 for padding, 1 to V
  for words, then unknown words, begin and end. The words are the first 10,000 of
  `stackoverflow.word_count` (a word and its count a line, as TensorFlow Federated and
  FedML have it), or the most frequent ones of the training sentences.

  Args:
    folder: of the files.
    num_clients: users that are drawn, and read; 0 is all.
    rng: draws them.

  Raises:
    UserError: if a file is absent or damaged, or no user has sentences of both splits.
  """
  paths = tff_hdf5.paths_of(folder, 'stackoverflow')
  names = _users(paths, folder)
  if 0 < num_clients < len(names):
    names = sorted(rng.choice(names, num_clients, replace=False).tolist())
  train, test = ({n: _sentences(path, n) for n in names} for path in paths)
  words = _words_of(folder / WORD_COUNTS, train)
  places = {word: i for i, word in enumerate(words, 1)}
  unknown = len(words) + 1
  coded = [
    {n: _examples(sentences, places, unknown) for n, sentences in split.items()}
    for split in (train, test)
  ]
  pool = from_clients(*coded, where=folder, num_classes=len(words) + 4, scale=1.0)
  classes = ('padding', *words, 'unknown', 'begin', 'end')
  return pool._replace(task=SEQUENCE.name, are_tokens=True, class_names=classes)


def _users(paths: list[pathlib.Path], folder: pathlib.Path) -> list[str]:
  """Users of both files that have sentences in each, sorted."""
  sizes = []
  for path in paths:
    with reading(path):
      sizes.append(tff.hdf5_sizes(path, 'tokens'))
  return sorted(n for n, size in sizes[0].items() if size and sizes[1].get(n))


def _sentences(path: pathlib.Path, name: str) -> list[list[str]]:
  """The words of each sentence of a user."""
  with reading(path):
    (held,) = tff.hdf5_client(path, name, 'tokens')
    sentences = [s.decode() if isinstance(s, bytes) else s for s in held.reshape(-1)]
  return [sentence.split() for sentence in sentences]


def _words_of(path: pathlib.Path, train: dict[str, list[list[str]]]) -> list[str]:
  """The most frequent words, of a file of counts or of the training sentences."""
  if path.is_file():
    with opened(path) as file:
      lines = file.read().decode('utf-8-sig').splitlines()
      counts = [(line.split()[0], int(line.split()[1])) for line in lines if line]
    ordered = sorted(counts, key=lambda count: -count[1])
    return [word for word, _ in ordered[:MOST_WORDS]]
  counted = Counter(w for sentences in train.values() for s in sentences for w in s)
  ordered = sorted(counted.items(), key=lambda count: (-count[1], count[0]))
  return [word for word, _ in ordered[:MOST_WORDS]]


def _examples(
  sentences: list[list[str]], places: dict[str, int], unknown: int
) -> Examples:
  """X [N, 20] float32 tokens and y [N, 20] int32 those after them, -1 for none."""
  rows = np.full((len(sentences), LENGTH + 1), _PADDING, np.int32)
  sizes = np.zeros(len(sentences), np.int32)
  for i, sentence in enumerate(sentences):
    words = [places.get(word, unknown) for word in sentence[:LENGTH]]
    row = [unknown + 1, *words, unknown + 2][: LENGTH + 1]
    rows[i, : len(row)], sizes[i] = row, len(row)
  there = np.arange(1, LENGTH + 1) < sizes[:, None]
  return rows[:, :-1].astype(np.float32), np.where(there, rows[:, 1:], -1)
