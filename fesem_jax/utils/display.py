"""Names and values from files and users, escaped for display.

They may contain anything: markup of Matplotlib, control characters (unsafe in terminals
and SVG), lone surrogates, or very long text.
"""

import textwrap
from collections.abc import Iterable


def printable(value: object, limit: int = 40) -> str:
  """A value as one line of at most `limit` printable characters, without its middle."""
  text = str(value)
  if len(text) > limit:
    length = limit - 3
    text = f'{text[: length - length // 2]}...{text[len(text) - length // 2 :]}'
  return ''.join(c if c.isprintable() else ' ' if c.isspace() else '?' for c in text)


def text_of(value: object) -> str:
  """An option's value in names of folders and tables: '0.1', '1', 'true', '64,32'."""
  if isinstance(value, list | tuple):
    return ','.join(map(text_of, value))
  text = str(value)
  return text.lower() if isinstance(value, bool) else text.removesuffix('.0')


def in_figure(value: object, limit: int = 40) -> str:
  """`printable`, for Matplotlib: without formulas."""
  return printable(value, limit).replace('$', r'\$')


def names_in_figure(methods: Iterable[object]) -> list[str]:
  """Texts of methods for Matplotlib; long names have several lines."""
  # A legend leaves out what begins with an underscore.
  names = [' ' * (x[:1] == '_') + x for x in (printable(m, 255) for m in methods)]
  lines = [textwrap.wrap(n.replace(';', '; ') if len(n) > 40 else n, 40) for n in names]
  return ['\n'.join(map(in_figure, name)) for name in lines]


def in_bytes(size: float) -> str:
  """A number of bytes with its unit, e.g. '3.5 GiB'."""
  for unit in ('bytes', 'KiB', 'MiB', 'GiB'):
    if abs(size) < 1024:
      return f'{size:,.0f} bytes' if unit == 'bytes' else f'{size:,.1f} {unit}'
    size /= 1024
  return f'{size:,.1f} TiB'


def class_names(num_classes: int, names: Iterable[str] | None = None) -> list[str]:
  """Names of the L classes of a data set; numbers where it has none, or another L."""
  names = [] if names is None else [str(name) for name in names]
  return names if len(names) == num_classes else [str(i) for i in range(num_classes)]
