"""JSON text that is checked before a parser sees it."""

import codecs
import pathlib
import re

import numpy as np

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import BoundedReader

# Far beyond real data: the parser needs quadratic time for deep nesting, and
# converting numbers of thousands of digits has ended in a crash.
MAX_TOKEN = 2000  # Bytes of a number or string.
MAX_DEPTH = 32  # Brackets around a value.

_ESCAPE = re.compile(rb'\\.', re.DOTALL)
_BETWEEN_TOKENS = re.compile(rb'[\s,:\[\]{}]+')
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}'))


class JsonReader(BoundedReader):
  """JSON text whose tokens and depth are bounded before a parser sees them.

  A token that lies in two reads may be twice as long. Raises `UserError` as
  `BoundedReader` does, and on reading beyond `MAX_TOKEN` or `MAX_DEPTH`.
  """

  def __init__(self, path: pathlib.Path):
    super().__init__(path)
    self._first = True  # Whether nothing was read yet.
    self._depth = 0
    self._quoted = False  # Whether the last read ended inside a string,
    self._escaped = False  # and there after a backslash.

  def read(self, size: int = -1) -> bytes:
    """The next bytes, at most `size` of them."""
    data = super().read(size)
    if self._first and data:  # Windows' editors begin UTF-8 files with this mark.
      self._first, data = False, data.removeprefix(codecs.BOM_UTF8) or b' '
    text = data[1:] if self._escaped and data else data
    if data:
      self._escaped = False
    if b'\\' in text:  # No escaped quote may look like the end of a string.
      text = _ESCAPE.sub(b'..', text)
      self._escaped = text.endswith(b'\\')
    parts = text.split(b'"')  # By turns outside and inside of strings.
    inside, outside = parts[1 - self._quoted :: 2], parts[self._quoted :: 2]
    self._quoted ^= len(parts) % 2 == 0
    bare = b' '.join(outside)
    if max(map(len, inside), default=0) > MAX_TOKEN or _has_long_token(bare):
      raise UserError(
        f'{self._path} holds a number or string of more than {MAX_TOKEN:,} '
        'characters; it is refused.'
      )
    for name in (b'NaN', b'Infinity'):
      if name in bare:
        raise UserError(
          f'{self._path} holds {name.decode()}, which JSON does not have: a missing or '
          'overflowed value; write finite numbers.'
        )
    brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
    # Bit 1 tells [ and { from ] and }.
    depths = self._depth + np.cumsum((brackets & 2).astype(np.int64) - 1)
    if depths.max(initial=0) > MAX_DEPTH:
      raise UserError(
        f'{self._path} holds brackets nested more than {MAX_DEPTH} deep; it is refused.'
      )
    self._depth = int(depths[-1]) if len(depths) else self._depth
    return data


def _has_long_token(text: bytes) -> bool:
  """Whether a number of more than `MAX_TOKEN` bytes is in JSON without its strings."""
  at = 0
  while at + MAX_TOKEN < len(text):
    comma = text.rfind(b',', at, at + MAX_TOKEN + 1)
    if comma < 0:  # Hardly ever: a long stretch of other characters.
      return max(map(len, _BETWEEN_TOKENS.split(text[at:]))) > MAX_TOKEN
    at = comma + 1
  return False
