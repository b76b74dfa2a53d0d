"""Text by speaker: the next character after 80, as in LEAF (Caldas et al., 2018)."""

import pathlib
import re
from typing import Annotated

import numpy as np

from fesem_jax.data import leaf, tff
from fesem_jax.data.reading import Arrays, Request, both_splits, find, join_clients
from fesem_jax.tasks import SEQUENCE
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Range, checked
from fesem_jax.utils.safe_files import opened

LENGTH = 80  # Characters of an example.
# LEAF's, in its order (models/utils/language_utils.py). LEAF looks characters up by
# `str.find`, which gives -1 for others: the last place of a one-hot label.
VOCABULARY = (
  '\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}'
)
_UNKNOWN = len(VOCABULARY) - 1
_TOKENS = np.full(129, _UNKNOWN, np.uint8)  # Of ASCII, and of all others.
_TOKENS[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))

_TRAIN_SHARE = 0.8
_SPEAKER = re.compile(r'([^\n:\uff1a]{1,80})[:\uff1a][ \t]*(?:\n|$)')

Stride = Annotated[int, Range(1)]
Texts = dict[str, tuple[str, str]]  # Training and test text of each client.


def tokens(text: str) -> np.ndarray:
  """[N] uint8 places of characters in `VOCABULARY`; the last one for all others."""
  codes = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), '<u4')
  return _TOKENS[np.minimum(codes, 128)]


@checked
def shakespeare(request: Request, stride: Stride = 1) -> Arrays:
  """Shakespeare by role, from leaf_shakespeare/, tff_shakespeare/ or tinyshakespeare/.

  `stride` is the number of characters between two examples, but of LEAF's.
  """
  places = 'leaf_shakespeare', 'tff_shakespeare', 'tinyshakespeare/input.txt'
  path = find(request, *places)
  if path.name == 'leaf_shakespeare':
    return _as_task(leaf.read_folder(path, _strings, _strings), request.task)
  if path.name == 'tff_shakespeare':
    snippets = tff.shakespeare(path)
    texts = {name: (_merged(a), _merged(b)) for name, (a, b) in snippets.items()}
    return _windows_of(texts, stride, request.task, path)
  return text(request, str(path), stride)


@checked
def text(request: Request, file: str, stride: Stride = 1) -> Arrays:
  """A text of speeches with a line NAME: before each; a client per speaker.

  The first 80 % of a speaker's characters are for training; no example crosses over.
  """
  path, speeches = pathlib.Path(file), dict[str, list[str]]()
  with opened(path) as opened_file:
    whole = opened_file.read().decode('utf-8-sig').replace('\r\n', '\n')
  for block in re.split(r'\n[ \t]*\n+', whole.strip()):
    speaker = _SPEAKER.match(block)
    check(speaker, f'{path}: {block[:40]!r} has no line NAME: before it')
    assert speaker is not None
    speeches.setdefault(speaker[1].strip(), []).append(block[speaker.end() :])
  texts = {}
  for name, parts in speeches.items():
    whole = _merged(parts)
    cut = round(_TRAIN_SHARE * len(whole))
    texts[name] = whole[:cut], whole[cut:]
  return _windows_of(texts, stride, request.task, path)


def _merged(speeches: list[str]) -> str:
  """All speeches, with one space for line breaks, as LEAF does."""
  return re.sub('  +', ' ', ' '.join(speeches).replace('\n', ' '))


def _strings(x: list[str]) -> np.ndarray:
  return tokens(''.join(x)).reshape(len(x), -1)


def _windows_of(texts: Texts, stride: int, task: str, path: pathlib.Path) -> Arrays:
  """Examples of clients whose training and test text have some."""
  texts = {name: pair for name, pair in texts.items() if min(map(len, pair)) > LENGTH}
  check(texts, f'{path}: no speaker has {LENGTH + 1} characters in both splits')
  characters = tokens(''.join(part for pair in texts.values() for part in pair))
  others = np.mean(characters == _UNKNOWN)
  check(others < 0.1, f'{path}: {others:.0%} of the characters have no token')
  splits = []
  for i in range(2):
    clients = {}
    for name, pair in texts.items():
      spans = np.lib.stride_tricks.sliding_window_view(tokens(pair[i]), LENGTH + 1)
      clients[name] = spans[::stride, :LENGTH], spans[::stride, LENGTH]
    splits.append(join_clients(clients))
  return _as_task(both_splits(*splits), task)


def _as_task(arrays: Arrays, task: str) -> Arrays:
  """For sequences, the target of each character is the next one."""
  if task == SEQUENCE.name:
    arrays['y'] = np.column_stack([arrays['x'][:, 1:], arrays['y']])
  names = ('line break', 'space', *VOCABULARY[2:-1], 'unknown')
  return arrays | {'scale': 1.0, 'num_classes': len(names), 'class_names': names}
