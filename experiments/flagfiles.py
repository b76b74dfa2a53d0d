"""Presets by their names: `--flagfile=demo`, wherever the package is installed."""

import pathlib

_FOLDER = pathlib.Path(__file__).parent / 'presets'


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

  absl reads all other flagfiles. It would look for presets in the current folder.
  """
  expanded, left = argv[:1], argv[1:]
  while left and left[0] != '--':
    flag, equals, value = left[0].partition('=')
    named = flag in ('--flagfile', '-flagfile')
    count = 1 if equals or not named else 2  # `--flagfile demo` too.
    path = preset(value if equals else ''.join(left[1:2])) if named else None
    if path is None:
      expanded += left[:count]
      left = left[count:]
    else:
      lines = path.read_text().splitlines()
      left = [line for line in lines if line.startswith('--')] + left[count:]
  return expanded + left
