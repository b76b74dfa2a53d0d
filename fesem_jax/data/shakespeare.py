"""Shakespeare by speaking role: the next character after 80, from LEAF or plain text.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018: 80 characters of a
role's speeches are an example, and the character after them is its label.
"""

import pathlib
import re
from typing import Any

import numpy as np

from fesem_jax.data import leaf
from fesem_jax.data.pool import Examples, Pool, cached_pool, from_clients
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once
from fesem_jax.utils.safe_files import BoundedReader, reading

LENGTH = 80  # Characters of an example.
# LEAF's, in its order (models/utils/language_utils.py). LEAF looks characters up by
# `str.find`, which gives -1 for others: the last place of a one-hot label.
VOCABULARY = (
  '\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}'
)
UNKNOWN = len(VOCABULARY) - 1

_TRAIN_SHARE = 0.8
# Accents of French or German are 3 to 5 % of a text; of other alphabets, most is.
_FEW_UNKNOWN, _MOST_UNKNOWN = 0.01, 0.1
_TOKENS = np.full(129, UNKNOWN, np.uint8)  # Of ASCII, and of all others.
_TOKENS[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))

_SPEECHES = re.compile(r'\n[ \t]*\n+')  # Blank lines are between them.
_SPEAKER = re.compile(r'([^\n:]{1,80}):[ \t]*(?:\n|$)')


def tokens(text: str) -> np.ndarray:
  """[N] uint8 places of characters in `VOCABULARY`; `UNKNOWN` for all others."""
  codes = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), '<u4')
  return _TOKENS[np.minimum(codes, 128)]


def windows(text: np.ndarray, stride: int) -> Examples:
  """Examples of a text [N] uint8: 80 tokens and the token after them.

  `stride` is the distance between the first characters of two examples. Returns [T, 80]
  uint8 and [T] int32; T is 0 for a short text.
  """
  if len(text) <= LENGTH:
    return np.empty((0, LENGTH), np.uint8), np.empty(0, np.int32)
  spans = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::stride]
  return np.ascontiguousarray(spans[:, :LENGTH]), spans[:, LENGTH].astype(np.int32)


def joined(speeches: list[str]) -> np.ndarray:
  """[N] tokens of all speeches, with one space for line breaks, as LEAF does."""
  return tokens(re.sub('  +', ' ', ' '.join(speeches).replace('\n', ' ')))


def load_leaf(folder: pathlib.Path) -> Pool:
  """LEAF's JSON: a client per role of a play.

  Raises `UserError` if a file is absent or damaged, or an example is not of 80
  characters and a label of one.
  """
  train, test = leaf.find_splits(folder)

  def read() -> tuple[dict[str, Examples], dict[str, Examples] | None]:
    return leaf.read_folder(folder, _strings, len(VOCABULARY), _next_characters)

  paths = [*train, *(test or [])]
  pool = cached_pool(folder, 'shakespeare 1', len(VOCABULARY), 1.0, read, paths)
  check_vocabulary(pool, folder)
  return pool


def _strings(x: list[Any], where: str) -> np.ndarray:
  """[N, 80] uint8 from strings of 80 characters."""
  if not all(isinstance(line, str) and len(line) == LENGTH for line in x):
    raise UserError(f'{where}: x must hold strings of {LENGTH} characters.')
  return tokens(''.join(x)).reshape(-1, LENGTH)


def _next_characters(y: list[Any], where: str) -> np.ndarray:
  """[N] from strings of one character."""
  if not all(isinstance(character, str) and len(character) == 1 for character in y):
    raise UserError(f'{where}: y must hold single characters, those after x.')
  return tokens(''.join(y))


def load_text(path: pathlib.Path, stride: int) -> Pool:
  """A plain text of speeches, with a line `NAME:` before each: a client per speaker.

  A speaker's speeches are joined, line breaks and spaces as LEAF treats them. The first
  80 % of these characters are for training, the others for testing, and no example
  reaches over the border. Speakers without an example of both are left out. `stride` is
  that of `windows`; 1 takes all windows, as LEAF does. Raises `UserError` if the file
  is absent, is no text, or has no speaker with enough text.
  """
  if not path.is_file():
    raise UserError(
      f'{path} does not exist; put a text of speeches there, with a line NAME: before '
      'each, such as github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt.'
    )
  with BoundedReader(path) as f, reading(path):
    text = f.read().decode('utf-8-sig').replace('\r\n', '\n')
  speeches: dict[str, list[str]] = {}
  for block in _SPEECHES.split(text.strip()):
    named = _SPEAKER.match(block)
    if named is None:
      first = block.strip().splitlines()[0][:40] if block.strip() else ''
      raise UserError(
        f'{path}: the speech that begins with {first!r} has no line NAME: before it.'
      )
    speeches.setdefault(named[1].strip(), []).append(block[named.end() :])
  train, test = {}, {}
  for name, said in speeches.items():
    whole = joined(said)
    cut = round(_TRAIN_SHARE * len(whole))
    parts = windows(whole[:cut], stride), windows(whole[cut:], stride)
    if all(len(y) for _, y in parts):
      train[name], test[name] = parts
  if not train:
    raise UserError(
      f'{path}: no speaker has enough text for {LENGTH + 1} characters of both splits.'
    )
  warn_of_left_out(len(speeches) - len(train), len(speeches), path)
  pool = from_clients(train, test, where=path, num_classes=len(VOCABULARY), scale=1.0)
  check_vocabulary(pool, path)
  return pool


def warn_of_left_out(left_out: int, count: int, where: object) -> None:
  """Says once how many speakers say too little to be clients."""
  if left_out:
    warn_once(
      f'{where}: {left_out:,} of {count:,} speakers are left out, who lack the '
      f'{LENGTH + 1} characters of an example in both splits.'
    )


def check_vocabulary(pool: Pool, where: object) -> None:
  """Says once if characters are outside the vocabulary; raises `UserError` if many.

  Models see them as one and the same character, which is easy to predict.
  """
  share = float(np.mean(pool.y == UNKNOWN))
  said = (
    f'{where}: {100 * share:.3g} % of the characters are outside the vocabulary of '
    "LEAF's Shakespeare, which has English letters only"
  )
  if share > _MOST_UNKNOWN:
    raise UserError(f'{said}; give data of your own tokens as npz:FILE instead.')
  if share > _FEW_UNKNOWN:
    warn_once(f'{said}; they become one character.')
