"""Texts by speaker or author, with LEAF's vocabulary or the characters of the data."""

import pathlib
import re
import unicodedata
from collections import Counter

import numpy as np

from fesem_jax.data import shakespeare
from fesem_jax.data.pool import Examples, Pool, from_clients
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import opened, reading

VOCABULARIES = ('leaf', 'data')

_TRAIN_SHARE = 0.8
_SPEECHES = re.compile(r'\n[ \t]*\n+')  # Blank lines are between them.
_SPEAKER = re.compile(r'([^\n:\uff1a]{1,80})[:\uff1a][ \t]*(?:\n|$)')
_NAMES = {'\n': 'line break', ' ': 'space', '\t': 'tab'}


def load(path: pathlib.Path, stride: int, vocabulary: str) -> Pool:
  """A text of speeches, or a folder of texts: a client per speaker, or per .txt file.

  Before each speech is a line `NAME:`. The speeches of a speaker are joined, line
  breaks and spaces as LEAF treats them. The first 80 % of these characters are for
  training, the others for testing, and no example reaches over the border; clients
  without an example of both are left out. `stride` is that of `shakespeare.windows`; 1
  takes all windows, as LEAF does. `vocabulary` is one of `VOCABULARIES`: 'data' are the
  characters of the training text, in their order, and one class for all others. Raises
  `UserError` if a file is absent or no text, or no client has enough text.
  """
  texts = _of_folder(path) if path.is_dir() else _of_speeches(path)
  if vocabulary == 'data':  # A letter may be one character or two, which look alike.
    texts = {n: unicodedata.normalize('NFC', text) for n, text in texts.items()}
  cuts = {name: round(_TRAIN_SHARE * len(text)) for name, text in texts.items()}
  length = shakespeare.LENGTH + 1
  kept = {n: t for n, t in texts.items() if min(cuts[n], len(t) - cuts[n]) >= length}
  if not kept:
    raise UserError(
      f'{path}: no speaker has enough text for {length} characters of both splits; '
      'give longer texts.'
    )
  if vocabulary == 'data':
    return _with_own_characters(kept, cuts, stride, path)
  coded = {name: shakespeare.tokens(text) for name, text in kept.items()}
  train, test = _split(coded, cuts, stride)
  classes = len(shakespeare.VOCABULARY)
  pool = from_clients(train, test, where=path, num_classes=classes, scale=1.0)
  return pool._replace(is_text=True)


def _split(
  coded: dict[str, np.ndarray], cuts: dict[str, int], stride: int
) -> tuple[dict[str, Examples], dict[str, Examples]]:
  """Windows of the training and the test part of each client's tokens."""
  train = {n: shakespeare.windows(t[: cuts[n]], stride) for n, t in coded.items()}
  test = {n: shakespeare.windows(t[cuts[n] :], stride) for n, t in coded.items()}
  return train, test


def _with_own_characters(
  texts: dict[str, str], cuts: dict[str, int], stride: int, where: object
) -> Pool:
  trained: Counter[str] = Counter()
  for name, text in texts.items():
    trained.update(text[: cuts[name]])
  characters = sorted(trained)
  places = np.array([ord(c) for c in characters], np.uint32)
  unknown = len(characters)
  # Bytes where they suffice, as of LEAF's vocabulary.
  kind = np.uint8 if unknown < 256 else np.float32

  def tokens(text: str) -> np.ndarray:
    codes = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), '<u4')
    index = np.searchsorted(places, codes).clip(max=unknown - 1)
    return np.where(places[index] == codes, index, unknown).astype(kind)

  train, test = _split({n: tokens(t) for n, t in texts.items()}, cuts, stride)
  pool = from_clients(train, test, where=where, num_classes=unknown + 1, scale=1.0)
  names = (*(_NAMES.get(c, c) for c in characters), 'unknown')
  return pool._replace(is_text=True, class_names=names)


def _read(path: pathlib.Path) -> str:
  with opened(path) as f:
    raw = f.read()
  return raw.decode('utf-8-sig').replace('\r\n', '\n')


def _of_folder(folder: pathlib.Path) -> dict[str, str]:
  """Name of each .txt file -> its text."""
  with reading(folder):
    paths = sorted(
      p
      for p in folder.iterdir()
      if p.is_file() and p.suffix.lower() == '.txt' and p.name[0] != '.'
    )
  if {'train', 'test'} <= {path.stem.lower() for path in paths}:
    raise UserError(
      f'{folder} holds a text train and a text test, but the texts of a folder are '
      'clients, each split 80/20; put one file there for each client.'
    )
  texts: dict[str, str] = {}
  for path in paths:
    texts[path.stem] = shakespeare.merged([_read(path)])
  return texts


def _of_speeches(path: pathlib.Path) -> dict[str, str]:
  """Speaker -> all that is said."""
  speeches: dict[str, list[str]] = {}
  within = 0
  for block in _SPEECHES.split(_read(path).strip()):
    named = _SPEAKER.match(block)
    if named is None:
      first = block.strip().splitlines()[0][:40] if block.strip() else ''
      raise UserError(
        f'{path}: the speech that begins with {first!r} has no line NAME: before it; '
        'add one, or give a folder of one .txt file for each client.'
      )
    speech = block[named.end() :]
    within += sum(_SPEAKER.fullmatch(line) is not None for line in speech.splitlines())
    speeches.setdefault(named[1].strip(), []).append(speech)
  return {name: shakespeare.merged(speech) for name, speech in speeches.items()}
