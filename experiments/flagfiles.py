"""Presets by their names: `--flagfile=demo`, wherever the package is installed."""

import collections
import pathlib

_FOLDER = pathlib.Path(__file__).parent / 'presets'


def names() -> list[str]:
  """Names of all presets, such as 'demo' and 'table2/fesem_4', in order."""
  files = _FOLDER.rglob('*.flags')
  return sorted(f.relative_to(_FOLDER).with_suffix('').as_posix() for f in files)


def preset(named: str) -> pathlib.Path | None:
  """The preset that a value of --flagfile means.

  Args:
    named: a preset's name, or experiments/presets/NAME.flags, as presets name each
      other: that file exists in the source tree only.

  Returns:
    Its file; None where the value means a file of the user's.
  """
  name = named.removeprefix('experiments/presets/').removesuffix('.flags')
  if pathlib.Path(named).is_file() or name not in names():
    return None
  return _FOLDER / f'{name}.flags'


def expand(argv: list[str]) -> list[str]:
  """A command line with the flags of presets in the place of their names.

  Args:
    argv: the program and its arguments; other flagfiles are left as they are.
  """
  expanded, arguments = argv[:1], collections.deque(argv[1:])
  while arguments and arguments[0] != '--':
    given = [arguments.popleft()]
    flag, equals, value = given[0].partition('=')
    named = flag in ('--flagfile', '-flagfile')
    if named and not equals and arguments:
      value = arguments.popleft()
      given.append(value)
    path = preset(value) if named else None
    if path is None:
      expanded += given
    else:
      lines = path.read_text().splitlines()
      flags = [line for line in lines if line and not line.startswith('#')]
      arguments.extendleft(reversed(flags))
  return [*expanded, *arguments]
