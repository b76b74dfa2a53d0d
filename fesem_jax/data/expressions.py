"""Expressions of flags: 'rotated(groups=4)+dirichlet(0.1)', 'fesem(4;rounds=9)'.

One grammar serves partitions, data sets, attacks, methods and sweeps: calls joined by
`+`, whose arguments `,` or `;` separates.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.ranges import check_choice

_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|.""", re.S)
_CLOSING = {'(': ')', '[': ']'}
_OPTION = re.compile(r'([^\W\d][\w.]*)\s*=\s*(.*)', re.S)
_CALL = re.compile(r'([\w.:-]+)\((.*)\)', re.S)


class Call(NamedTuple):
  """A name with arguments; `str` writes it as an expression."""

  name: str
  args: tuple[Any, ...] = ()
  options: Mapping[str, Any] = {}

  def __str__(self) -> str:
    options = [f'{name}={write(x)}' for name, x in self.options.items()]
    arguments = ', '.join([*map(write, self.args), *options])
    return f'{self.name}({arguments})' if arguments else self.name


def split(text: str, separators: str = ',', subject: str = 'expression') -> list[str]:
  """Parts of a text between separators that are outside of brackets and quotes."""
  parts, closing = [''], list[str]()
  for token in _TOKEN.findall(text):
    if token in _CLOSING:
      closing.append(_CLOSING[token])
    elif token in _CLOSING.values() or token in ('"', "'"):
      check(token in closing[-1:], f'{subject}: {text!r:.60} has an unbalanced {token}')
      closing.pop()
    if token in separators and not closing:
      parts.append('')
    else:
      parts[-1] += token
  check(not closing, f'{subject}: {text!r:.60} lacks {"".join(closing[::-1])}')
  return [part.strip() for part in parts]


def split_call(
  text: str, subject: str = 'expression'
) -> tuple[str, dict[str | int, str]]:
  """'fesem(4;rounds=9)' -> ('fesem', {0: '4', 'rounds': '9'}), as texts."""
  match = _CALL.fullmatch(f'{text.strip()}()' if '(' not in text else text.strip())
  if not match:
    raise UserError(f'{subject}: {text!r:.60} is not NAME or NAME(ARGUMENT, ...)')
  parts = split(match[2], ',;', subject) if match[2].strip() else []
  arguments: dict[str | int, str] = {}
  for place, part in enumerate(parts):
    option = _OPTION.fullmatch(part)
    arguments |= {option[1]: option[2]} if option else {place: part}
  check('' not in arguments.values(), f'{subject}: {text!r:.60} has an empty argument')
  return match[1], arguments


def parse(text: str, subject: str = 'expression') -> list[Call]:
  """The calls that + joins, e.g. of 'rotated(groups=4)+dirichlet(0.1)'.

  Values are numbers, True, False, None, 'quoted texts', [lists] as tuples, and calls;
  all else, such as a path, is a text. Raises `UserError` on other expressions.
  """
  calls = []
  for part in split(text, '+', subject):
    name, arguments = split_call(part, subject)
    values = {key: value(content) for key, content in arguments.items()}
    args = tuple(x for key, x in values.items() if isinstance(key, int))
    options = {key: x for key, x in values.items() if isinstance(key, str)}
    calls.append(Call(name, args, options))
  return calls


def value(text: str) -> Any:
  """The value of an argument, of the type that its text has; see `parse`."""
  text = text.strip()
  if text in ('true', 'false'):
    return text == 'true'
  if text[:1] in ('[', '('):
    check(text[-1] == _CLOSING[text[0]], f'expression: {text!r:.60} is no list')
    return tuple(value(part) for part in split(text[1:-1], ',;') if part)
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return parse(text)[0] if _CALL.fullmatch(text) else text


def write(item: Any) -> str:
  """The text whose `value` is the value."""
  if isinstance(item, list | tuple) and not isinstance(item, Call):
    return f'[{", ".join(map(write, item))}]'
  plain = not isinstance(item, str) or re.fullmatch(r'[^\s()\[\],;"\']+', item)
  plain = plain and (not isinstance(item, str) or value(item) == item)
  return str(item) if plain else repr(item)


def build(
  text: str, kinds: Mapping[str, Callable[..., Any]], subject: str = 'expression'
) -> list[Any]:
  """Values of the calls of a text, e.g. the parts of a partition.

  `kinds` maps names to functions; `subject` is the flag or argument in messages.
  """

  def evaluate(item: Any) -> Any:
    if not isinstance(item, Call):
      return item
    check_choice(subject, item.name, tuple(kinds))
    kind, args = kinds[item.name], [evaluate(x) for x in item.args]
    options = {name: evaluate(x) for name, x in item.options.items()}
    try:
      inspect.signature(kind).bind(*args, **options)
    except TypeError as e:
      raise UserError(f'{subject}: {item.name}: {e}') from e
    try:
      return kind(*args, **options)
    except UserError as e:
      raise UserError(f'{subject}: {str(e).removeprefix(f"{subject}: ")}') from e

  return [evaluate(call) for call in parse(text, subject)]
