"""--help: one page; --help=TOPIC: the flags of a topic or a method, or one flag."""

import difflib
import inspect
import re
import sys
import textwrap

from absl import flags

from fesem_jax import algorithms
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError

from . import flags as experiment_flags
from . import methods
from .flag_tables.method import text_for

_WIDTH = 88
_OURS = ('experiments.', 'fesem_jax.', 'reproductions.')
_TOPICS = {
  'data': 'data sets and their options',
  'partition': 'how examples are dealt to clients, and drift',
  'model': 'models, and what they start from',
  'training': 'optimizer, learning rates, batches, epochs',
  'privacy': 'noise and compression of what clients send',
  'run': 'rounds, drawn clients, bad clients, stopping',
  'evaluation': 'when models are measured, and on whom',
  'output': 'what is recorded, reported, logged and saved',
  'machine': 'devices, clients and runs side by side',
  'processes': 'one run of several processes',
  'methods': 'all methods; --help=fesem, --help=IFCA: one of them',
}
# Methods have clusters if they have one of these options, and the oracle has.
_OF_CLUSTERS = ('num_clusters', 'max_clusters')
_NEED_CLUSTERS = ('patience',)
_KINDS = (
  (flags.IntegerParser, 'whole number'), (flags.FloatParser, 'number'),
  (flags.ListParser, 'list'), (flags.ArgumentParser, 'text'),
)  # fmt: skip


def asked(argv: list[str]) -> str | None:
  """Topic of --help in a command line: '' is the page, None is nothing.

  The value of --help=TOPIC, or 'full'.
  """
  given = argv[1 : argv.index('--')] if '--' in argv else argv[1:]
  for text in given:
    name, _, value = text.lstrip('-').partition('=')
    if text.startswith('-') and name in ('help', 'h', 'helpfull', 'helpshort'):
      return 'full' if name == 'helpfull' else value
  return None


def text(topic: str = '') -> str:
  """The page of the running binary, or the text of a topic.

  Raises `UserError` on an unknown topic.
  """
  if not topic:
    return _page()
  if topic == 'full':
    return _everything()
  if topic == 'methods' and topic in _topics():
    return _methods()
  if topic in _topics():
    return _list(f'--help={topic}: {_TOPICS[topic]}', _flags_of(topic))
  if 'methods' in _topics():
    try:
      return _method(algorithms.named(topic))
    except UserError:
      pass
  name = topic.lstrip('-')
  if name in flags.FLAGS:
    return _described(name)
  known = [*_topics(), *flags.FLAGS]
  if 'methods' in _topics():
    known += [*algorithms.METHODS, *algorithms.ALIASES]
  near = difflib.get_close_matches(name.lower(), known, 3)
  hint = f'; did you mean {" or ".join(near)}?' if near else '.'
  listed = ', '.join(_topics()) or 'the names of flags'
  raise UserError(
    f'--help={topic} is no topic, method or flag; topics are {listed}{hint}'
  )


def _topics() -> list[str]:
  """The topics of which the running binary has flags."""
  groups = experiment_flags.GROUPS
  return [t for t in _TOPICS if all(f.name in flags.FLAGS for f in groups[t])]


def _flags_of(topic: str) -> list[str]:
  return [f.name for f in experiment_flags.GROUPS[topic]]


def _own() -> list[str]:
  """Flags that the running binary has beside those of topics."""
  grouped = {f.name for topic in _topics() for f in experiment_flags.GROUPS[topic]}
  names = [
    flag.name
    for module, defined in flags.FLAGS.flags_by_module_dict().items()
    for flag in defined
    if module == sys.argv[0] or module.startswith(_OURS)
  ]
  return [n for n in dict.fromkeys(names) if n not in grouped]


def _page() -> str:
  """Usage and examples, the flags of this binary, and topics."""
  parts, topics = [(sys.modules['__main__'].__doc__ or '').strip()], _topics()
  if not topics:
    return '\n\n'.join([*parts, *map(_described, _own())])
  parts.append('\n'.join(map(_in_a_line, _own())))
  listed = [f'  --help={name:<11} {_TOPICS[name]}' for name in topics]
  parts.append('\n'.join(['More flags by topic:', *listed]))
  parts.append(
    '--help=FLAG describes one flag, --helpfull all of them. --flagfile=FILE reads '
    'flags\nfrom a file, one a line; a preset goes by its name, as --flagfile=demo.'
  )
  return '\n\n'.join(parts)


def _in_a_line(name: str) -> str:
  """A flag and the beginning of its help."""
  form = f'  {_form(name)}'
  words = re.split(r'(?<!e\.g)\. ', _words(name))[0].rstrip('.')
  if len(form) > 26:
    form = f'  --{name}'
  return f'{form:<26} {textwrap.shorten(words, _WIDTH - 27, placeholder=" ...")}'


def _everything() -> str:
  """All flags, those of libraries too."""
  groups = {'This command': _own()}
  groups |= {_TOPICS[t].capitalize(): _flags_of(t) for t in _topics()}
  groups['Options of methods'] = groups.pop(_TOPICS['methods'].capitalize(), [])
  known = {name for names in groups.values() for name in names}
  groups['Libraries'] = sorted(set(flags.FLAGS) - known)
  parts = [_list(title, names) for title, names in groups.items() if names]
  return '\n\n'.join([(sys.modules['__main__'].__doc__ or '').strip(), *parts])


def _list(title: str, names: list[str]) -> str:
  return '\n\n'.join([f'{title}:', *map(_described, names)])


def _methods() -> str:
  """Every method, and other names that are understood."""
  lines = ['Methods, as --algorithm names them; --help=NAME describes one:', '']
  for name, factory in algorithms.METHODS.items():
    first = (inspect.getmodule(factory).__doc__ or '').strip().splitlines()[0]
    lines.append(f'  {name:<13} {textwrap.shorten(first, _WIDTH - 17)}')
  others = (f'{other} ({name})' for other, name in algorithms.ALIASES.items())
  more = (
    f'Other names: {", ".join(others)}. Capitals and _ do not matter, as in FedAvg. '
    'MODULE:FUNCTION is a method of your own.'
  )
  return '\n'.join([*lines, '', textwrap.fill(more, _WIDTH)])


def _method(name: str) -> str:
  """Text on a method: its computation, its options, and the flags that act on it."""
  factory, own = algorithms.METHODS[name], methods.options(name)
  about, *_ = (inspect.getdoc(factory) or '').partition('\nArgs:')
  others = [other for other, of in algorithms.ALIASES.items() if of == name]
  called = f'--algorithm={name}' + (f', also {", ".join(others)}' if others else '')
  parts = [f'{called}\n\n{about.strip().replace("`", "")}', 'Options:']
  for option, default in own.items():
    form = f'  --{option}' if default is None else f'  --{option}={text_of(default)}'
    parts.append(_entry(f'{form}  ({_kind(option)})', text_for(name, option)))
  if len(parts) == 2:
    parts[1] = 'It has no options.'
  clusters = name == 'oracle' or any(option in own for option in _OF_CLUSTERS)
  acting = [
    f'--{flag}'
    for topic in ('training', 'privacy', 'run', 'evaluation', 'output')
    for flag in _flags_of(topic)
    if clusters or flag not in _NEED_CLUSTERS
  ]
  wrapped = textwrap.fill(
    ', '.join(acting), _WIDTH, initial_indent='  ', subsequent_indent='  ',
    break_on_hyphens=False,
  )  # fmt: skip
  return '\n\n'.join([*parts, f'Flags of all methods that act on it:\n{wrapped}'])


def _described(name: str) -> str:
  """A flag with its default, its kind and its help."""
  return _entry(f'  {_form(name)}  ({_kind(name)})', _words(name))


def _entry(form: str, words: str) -> str:
  first, *kinds = words.replace('`', '').splitlines() or ['']
  lines = [_filled(first, 6, 6), *(_filled(kind, 8, 10) for kind in kinds)]
  return '\n'.join([form, *lines])


def _filled(text: str, indent: int, next_indent: int) -> str:
  return textwrap.fill(
    text, _WIDTH, initial_indent=' ' * indent, subsequent_indent=' ' * next_indent,
    break_on_hyphens=False,
  )  # fmt: skip


def _form(name: str) -> str:
  """--name=default."""
  flag = flags.FLAGS[name]
  if flag.boolean:
    return f'--[no]{name}'
  default = '' if flag.default in (None, '', []) else text_of(flag.default)
  return f'--{name}={default}' if default else f'--{name}'


def _kind(name: str) -> str:
  """Values that a flag takes."""
  flag = flags.FLAGS[name]
  if flag.boolean:
    return 'true or false' if flag.default is None else f'default {text_of(flag.value)}'
  if choices := getattr(flag.parser, 'enum_values', None):
    return ', '.join(choice or "''" for choice in choices)
  return next(kind for parser, kind in _KINDS if isinstance(flag.parser, parser))


def _words(name: str) -> str:
  """A flag's help."""
  lines = (flags.FLAGS[name].help or '').splitlines()
  words = '\n'.join(' '.join(line.split()) for line in lines)
  return re.sub(r'^<[^>]*\|[^>]*>: ', '', words)  # absl's list of choices.
