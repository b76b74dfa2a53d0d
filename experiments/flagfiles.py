"""Presets by their names: `--flagfile=demo`, wherever the package is installed."""

import pathlib

_FOLDER = pathlib.Path(__file__).parent / 'presets'


def names() -> list[str]:
  """Names of all presets, such as 'demo' and 'table2/fesem_4', in order."""
  files = _FOLDER.rglob('*.flags')
  return sorted(f.relative_to(_FOLDER).with_suffix('').as_posix() for f in files)


def preset(named: str) -> pathlib.Path | None:
  """The file of the preset that a value of --flagfile names; None for other files.

  The value is a preset's name, or experiments/presets/NAME.flags, as presets name each
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
  return argv[:1] + _expanded(argv[1:], ())


def _expanded(given: list[str], within: tuple[str, ...]) -> list[str]:
  """`expand` of the flags of a command line, or of a file inside of others."""
  expanded, remaining = list[str](), given
  while remaining and remaining[0] != '--':
    flag, equals, value = remaining[0].partition('=')
    named = flag in ('--flagfile', '-flagfile')
    count = 1 if equals or not named else 2  # `--flagfile demo` too.
    value = value if equals else ''.join(remaining[1:2])
    in_place = _flags_in_place(value, within) if named else None
    expanded += remaining[:count] if in_place is None else in_place
    remaining = remaining[count:]
  return expanded + remaining


def _flags_in_place(named: str, within: tuple[str, ...]) -> list[str] | None:
  """The flags of a preset, or of a file that names one; None of all others."""
  path = preset(named)
  if path is None and named in within:  # absl says that a file names itself.
    return None
  try:
    lines = (path or pathlib.Path(named)).read_text().splitlines()
  except (OSError, ValueError):  # absl says what is wrong.
    return None
  lines = [line.strip() for line in lines]
  lines = [line for line in lines if line and not line.startswith(('#', '//'))]
  expanded = _expanded(lines, (*within, named))
  return expanded if path is not None or expanded != lines else None
