"""Shakespeare by speaking role: the next character after 80, as in LEAF.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018: 80 characters of a
role's speeches are an example, and the character after them is its label.
"""

import pathlib
import re
from typing import Any

import numpy as np

from fesem_jax.data import leaf
from fesem_jax.data.pool import Examples, Pool, cached_pool
from fesem_jax.utils.errors import check

LENGTH = 80  # Characters of an example.
# LEAF's, in its order (models/utils/language_utils.py). LEAF looks characters up by
# `str.find`, which gives -1 for others: the last place of a one-hot label.
VOCABULARY = (
  '\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}'
)
UNKNOWN = len(VOCABULARY) - 1

_TOKENS = np.full(129, UNKNOWN, np.uint8)  # Of ASCII, and of all others.
_TOKENS[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))


def tokens(text: str) -> np.ndarray:
  """[N] uint8 places of characters in `VOCABULARY`; `UNKNOWN` for all others."""
  codes = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), '<u4')
  return _TOKENS[np.minimum(codes, 128)]


def windows(text: np.ndarray, stride: int) -> Examples:
  """Examples of a text [N] of tokens: 80 tokens and the token after them.

  `stride` is the distance between the first characters of two examples. Returns
  [T, 80] of the text's dtype and [T] int32; T is 0 for a short text.
  """
  if len(text) <= LENGTH:
    return np.empty((0, LENGTH), text.dtype), np.empty(0, np.int32)
  spans = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::stride]
  return np.ascontiguousarray(spans[:, :LENGTH]), spans[:, LENGTH].astype(np.int32)


def merged(speeches: list[str]) -> str:
  """All speeches, with one space for line breaks, as LEAF does."""
  return re.sub('  +', ' ', ' '.join(speeches).replace('\n', ' '))


def load_leaf(folder: pathlib.Path, users: str = '') -> Pool:
  """LEAF's JSON: a client per role of a play; `users` are those of `leaf.of_users`.

  Raises `UserError` if a file is absent or damaged, or an example is not of 80
  characters and a label of one.
  """
  train, test = leaf.find_splits(folder)

  def read() -> tuple[dict[str, Examples], dict[str, Examples] | None]:
    how = _strings, len(VOCABULARY), _next_characters
    return leaf.read_folder(folder, *how, users=users)

  paths, name = [*train, *(test or [])], 'shakespeare 1' + ' users' * bool(users)
  pool = cached_pool(folder, name, len(VOCABULARY), 1.0, read, paths)
  return leaf.of_users(pool, folder, users)


def _strings(x: list[Any], where: str) -> np.ndarray:
  """[N, 80] uint8 from strings of 80 characters."""
  check(all(len(line) == LENGTH for line in x), f'{where}: x needs {LENGTH} characters')
  return tokens(''.join(x)).reshape(-1, LENGTH)


def _next_characters(y: list[Any], where: str) -> np.ndarray:
  """[N] from strings of one character."""
  check(all(len(text) == 1 for text in y), f'{where}: y needs one character')
  return tokens(''.join(y))
