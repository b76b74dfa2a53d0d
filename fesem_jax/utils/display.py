"""Names and values from files and users, escaped for display.

They may contain anything: control characters, which are unsafe in terminals and SVG,
lone surrogates, or very long text.
"""


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
