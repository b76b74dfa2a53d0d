"""MkDocs hook: browsers break no lines in flags, nor in figures of tables."""

import re
from typing import Any

_BLOCK = re.compile(r'(<pre\b.*?</pre>)', re.S)
_CODE = re.compile(r'(<code>)(.*?)(</code>)', re.S)
_FLAG = re.compile(r'--\w[\w-]*')  # Browsers break after each hyphen.
_CELL = re.compile(r'<td\b.*?</td>', re.S)
# "97.4 ± 0.5", "(-23.0 to +1.2)", "0.4 h".
_FIGURE = re.compile(r'(?<=\d) (?:(?:±|to) (?=[-+]?\d)|h\b)')


def on_page_content(page_html: str, **kwargs: Any) -> str:
  """Called by MkDocs with every page: keeps flags and figures whole."""
  del kwargs
  parts = _BLOCK.split(page_html)
  parts[::2] = map(unbroken, parts[::2])  # The others are blocks of code.
  return ''.join(parts)


def unbroken(part: str) -> str:
  """HTML without blocks of code, its flags and figures in one line each."""
  part = _CELL.sub(
    lambda cell: _FIGURE.sub(lambda m: m[0].replace(' ', '&nbsp;'), cell[0]), part
  )
  return _CODE.sub(
    lambda m: m[1] + _FLAG.sub(r'<span class="unbroken">\g<0></span>', m[2]) + m[3],
    part,
  )
