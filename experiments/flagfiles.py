"""Presets by their names: `--flagfile=demo`, wherever the package is installed."""

import pathlib

_FOLDER = pathlib.Path(__file__).parent / 'presets'
_FLAGFILE = ('--flagfile', '-flagfile')


def names() -> list[str]:
  """Names of all presets, such as 'demo' and 'table2/fesem_4', in order."""
  files = _FOLDER.rglob('*.flags')
  return sorted(f.relative_to(_FOLDER).with_suffix('').as_posix() for f in files)


def preset(named: str) -> pathlib.Path | None:
  """The file of the preset that a value of --flagfile names; None for other files.

  Args:
    named: a preset's name, or experiments/presets/NAME.flags, as presets name each
      other: that file exists in the source tree only.
  """
  name = named.removeprefix('experiments/presets/').removesuffix('.flags')
  own = pathlib.Path(named).is_file() or name not in names()
  return None if own else _FOLDER / f'{name}.flags'


def expand(argv: list[str]) -> list[str]:
  """A command line with the flags of presets in the place of their names.

  Files of the user's may name presets too. absl reads all other flagfiles; it would
  look for presets in the current folder.
  """
  expanded, left, opened = argv[:1], argv[1:], set[str]()
  while left and left[0] != '--':
    flag, equals, value = left[0].partition('=')
    named = flag in _FLAGFILE
    count = 1 if equals or not named else 2  # `--flagfile demo` too.
    value = value if equals else ''.join(left[1:2])
    lines = _flags_in_place(value) if named and value not in opened else None
    if lines is None:
      expanded += left[:count]
      left = left[count:]
    else:
      opened |= {value} if preset(value) is None else set()  # Which may name itself.
      left = lines + left[count:]
  return expanded + left


def _flags_in_place(named: str) -> list[str] | None:
  """The flags of a preset, or of a file that names one; None of all others."""
  path = preset(named)
  try:
    lines = (path or pathlib.Path(named)).read_text().splitlines()
  except (OSError, ValueError):  # absl says what is wrong.
    return None
  lines = [line.strip() for line in lines]
  lines = [line for line in lines if line and not line.startswith(('#', '//'))]
  parts = [line.partition('=') for line in lines]
  names_one = any(flag in _FLAGFILE and preset(value) for flag, _, value in parts)
  return lines if path is not None or names_one else None
