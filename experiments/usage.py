"""--help: the flags of a binary in groups."""

import sys
import textwrap

from absl import flags

from . import flags as experiment_flags

_WIDTH = 88

_TITLES = {
  'data': 'Data', 'model': 'Model', 'training': 'Local training', 'run': 'Run',
  'method': 'Options of methods', 'machine': 'Machine',
  'processes': 'Several processes',
}  # fmt: skip


def asked(argv: list[str]) -> bool:
  """Whether a command line asks for help."""
  given = argv[1 : argv.index('--')] if '--' in argv else argv[1:]
  return bool({'--help', '-help', '-h', '--h'} & set(given))


def text() -> str:
  """What the running binary does, and its flags: its own, then group by group."""
  own = flags.FLAGS.flags_by_module_dict().get(sys.argv[0], [])
  names_of_own = [flag.name for flag in own]
  parts = [(sys.modules['__main__'].__doc__ or '').strip()]
  groups = {'This binary': names_of_own} | {
    title: [flag.name for flag in experiment_flags.GROUPS[group]]
    for group, title in _TITLES.items()
  }
  for title, names in groups.items():
    defined = [name for name in names if name in flags.FLAGS]
    if title != 'This binary':
      defined = [name for name in defined if name not in names_of_own]
    if defined:
      parts.append('\n\n'.join([f'{title}:', *map(_described, defined)]))
  parts.append(
    '--flagfile=FILE reads flags from a file, one a line; a preset goes by its name,\n'
    'such as --flagfile=demo. --helpfull lists the flags of all libraries too.'
  )
  return '\n\n'.join(parts)


def _described(name: str) -> str:
  """A flag with its default and its help."""
  flag = flags.FLAGS[name]
  default = '' if flag.default in (None, '', []) else f'={_shown(flag.default)}'
  form = f'--[no]{name}' if flag.boolean else f'--{name}{default}'
  words = ' '.join((flag.help or '').split())
  if flag.boolean and flag.default is not None:
    words += f' Default: {_shown(flag.default)}.'
  indent = ' ' * 6
  return f'  {form}\n' + textwrap.fill(
    words, _WIDTH, initial_indent=indent, subsequent_indent=indent
  )


def _shown(default: object) -> str:
  """A default as one would write it."""
  if isinstance(default, bool):
    return str(default).lower()
  return ','.join(map(str, default)) if isinstance(default, list) else str(default)
