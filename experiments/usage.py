"""--help: one page; --help=TOPIC: the flags of a topic or a method, or one flag."""

import difflib
import inspect
import re
import sys
import textwrap
from typing import get_args

from absl import flags

from fesem_jax import algorithms
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError

from . import methods, options

_WIDTH = 88
_OURS = ('experiments.', 'fesem_jax.', 'reproductions.')


def requested_topic(argv: list[str]) -> str | None:
  """Topic of --help in a command line: '' is the page, None is nothing."""
  for text in argv[1 : argv.index('--') if '--' in argv else None]:
    name, _, value = text.lstrip('-').partition('=')
    if text.startswith('-') and name in ('help', 'h', 'helpfull', 'helpshort'):
      return 'full' if name == 'helpfull' else value
  return None


def text(topic: str = '') -> str:
  """The page of the running binary, or the text of a topic."""
  name, topics = topic.lstrip('-'), _topics()
  if not topic:
    return _page(topics)
  if topic == 'full':
    names = [*_personal(), *(n for names in topics.values() for n in names)]
    return '\n\n'.join(map(_described, dict.fromkeys(names)))
  if topic == 'methods' and topic in topics:
    modules = {n: inspect.getmodule(f) for n, f in algorithms.METHODS.items()}
    names = [f'  {n:<13} {_first_line(m)}' for n, m in modules.items()]
    return '\n'.join(['Methods; --help=NAME describes one:', *names])
  if topic in topics:
    return '\n\n'.join(map(_described, topics[topic]))
  if name in flags.FLAGS:
    return _described(name)
  names = [*topics, *flags.FLAGS]
  if 'methods' in topics:
    names += [*algorithms.METHODS, *algorithms.ALIASES]
    try:
      return _method(algorithms.named(topic))
    except UserError:
      pass
  near = difflib.get_close_matches(name.lower(), names, 3)
  hint = (
    f'did you mean {" or ".join(near)}?' if near else f'topics: {", ".join(topics)}'
  )
  raise UserError(f'--help: unknown topic {topic!r}; {hint}')


def _topics() -> dict[str, list[str]]:
  """Topics of which the running binary has flags -> their names."""
  names = {t: [o.name for o in options.fields(c)] for t, c in options.TOPICS.items()}
  names['methods'] = list(methods.shared_options())
  return {t: all_ for t, all_ in names.items() if all(n in flags.FLAGS for n in all_)}


def _personal() -> list[str]:
  grouped = {name for names in _topics().values() for name in names}
  modules = flags.FLAGS.flags_by_module_dict().items()
  ours = [m for m in modules if m[0] == sys.argv[0] or m[0].startswith(_OURS)]
  names = [flag.name for _, defined in ours for flag in defined]
  return [name for name in dict.fromkeys(names) if name not in grouped]


def _page(topics: dict[str, list[str]]) -> str:
  """Usage and examples, the flags of this binary, and topics."""
  parts = [(sys.modules['__main__'].__doc__ or '').strip()]
  if not topics:
    return '\n\n'.join([*parts, *map(_described, _personal())])
  parts.append('\n'.join(map(_in_a_line, _personal())))
  lines = ['More flags by topic:']
  for topic in topics:
    words = _first_line(options.TOPICS.get(topic, methods))
    lines.append(f'  --help={topic:<11} {words}')
  parts.append('\n'.join(lines))
  parts.append(
    '--help=FLAG describes one flag, --helpfull all of them. --flagfile=FILE reads '
    'flags\nfrom a file, one a line; a preset goes by its name, as --flagfile=demo.'
  )
  return '\n\n'.join(parts)


def _first_line(item: object) -> str:
  text = (inspect.getdoc(item) or '').splitlines()[0]
  return textwrap.shorten(text, _WIDTH - 20, placeholder=' ...')


def _in_a_line(name: str) -> str:
  """A flag and the beginning of its help."""
  form = f'  {_form(name)}'
  words = re.split(r'(?<!e\.g)\. ', _words(name))[0].rstrip('.')
  form = form if len(form) <= 26 else f'  --{name}'
  return f'{form:<26} {textwrap.shorten(words, _WIDTH - 27, placeholder=" ...")}'


def _method(name: str) -> str:
  """A method: its names, its options with defaults, and its docstring."""
  names = [name, *(n for n, method in algorithms.ALIASES.items() if method == name)]
  defaults = [f'{n}={text_of(x)}' for n, x in methods.options(name).items()]
  listed = textwrap.fill(f'Options: {"; ".join(defaults) or "none"}', _WIDTH)
  about = inspect.getdoc(algorithms.METHODS[name]) or ''
  return f'--algorithm={", ".join(names)}\n\n{listed}\n\n{about}'


def _described(name: str) -> str:
  """A flag with its default, its kind and its help."""
  first, *kinds = _words(name).splitlines() or ['']
  lines = [f'  {_form(name)}  ({_kind(name)})', *textwrap.wrap(first, _WIDTH - 6)]
  lines[1:] = [f'      {line}' for line in lines[1:]]
  for kind in kinds:
    lines.append(textwrap.fill(kind, _WIDTH, initial_indent=' ' * 8,
                               subsequent_indent=' ' * 10))  # fmt: skip
  return '\n'.join(lines)


def _form(name: str) -> str:
  flag = flags.FLAGS[name]
  if flag.boolean:
    return f'--[no]{name}'
  default = '' if flag.default in (None, '', []) else text_of(flag.default)
  return f'--{name}={default}' if default else f'--{name}'


def _kind(name: str) -> str:
  flag = flags.FLAGS[name]
  if flag.boolean:
    return 'true or false'
  hint = getattr(flag.parser, 'hint', str)
  choices = getattr(flag.parser, 'enum_values', None) or options.choices(hint)
  if choices:
    return ', '.join(choice or "''" for choice in choices)
  kinds = {int: 'whole number', float: 'number', tuple: 'list'}
  plain = (*get_args(hint), hint)[0] if hasattr(hint, '__metadata__') else hint
  return kinds.get(getattr(plain, '__origin__', plain), 'text')


def _words(name: str) -> str:
  text = (flags.FLAGS[name].help or '').replace('`', '')
  lines = '\n'.join(' '.join(line.split()) for line in text.splitlines())
  return re.sub(r'^<[^>]*\|[^>]*>: ', '', lines)  # absl's list of choices.
