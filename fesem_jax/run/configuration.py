"""Compares configurations: those of one run agree in all that changes results."""

import itertools
import pathlib
from typing import Any

from fesem_jax.core import identity
from fesem_jax.run.results.file_digests import FREE, SAID
from fesem_jax.utils.errors import WorkdirError

# What identifies a method of Python; workdirs of versions until 0.3 have in its place
# `program`, a digest of compiled programs, which no other version gets.
_OF_METHOD = {
  'method', 'model', 'optimizer', 'training', 'selection', 'settings_of_jax',
}  # fmt: skip


def check_same(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> None:
  """Raises `WorkdirError` naming each entry that differs and may not."""
  described = [_is_described(each) for each in (old, config)]
  if described[0] != described[1] and 'algorithm' in (config if described[0] else old):
    kinds = ('Python', 'a command') if described[0] else ('a command', 'Python')
    raise WorkdirError(
      f'`workdir={workdir}` holds a run of {kinds[0]}, and this is one of {kinds[1]}. '
      'Choose another folder or delete this one.'
    )
  differing = []
  free = FREE | SAID if _is_described(config) else FREE
  if 'program' in old and _is_described(config):
    free = free | _OF_METHOD | {'program'}
  for name in sorted((old.keys() | config.keys()) - free):
    # Configurations name the placement only where it is not this one.
    default = 'replicated' if name == 'data_placement' else 'absent'
    there, now = old.get(name, default), config.get(name, default)
    are_lists = isinstance(there, list) and isinstance(now, list)
    if are_lists and name in _OF_METHOD and _is_described(config):
      there, now = _apart(there, now)
    if there == now:
      continue
    if str(there) == str(now):  # "20" and 20.
      there, now = repr(there), repr(now)
    differing.append(
      'the data (its examples, labels or clients differ)'
      if name == 'data_digest'
      else f'`{name}` (there: {there}, now: {now})'
    )
  if _is_described(old) and _is_described(config) and _is_comparable(old, config):
    edited, others = _functions(old['code'], config['code'])
    if others and not edited:
      differing.append(f'`method` (its functions: {", ".join(others)})')
  if differing:
    raise WorkdirError(
      f'`workdir={workdir}` holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )


def _is_described(config: dict[str, Any]) -> bool:
  """True if `resume.default_config` made a configuration; users may give others."""
  return 'settings_of_jax' in config


def _apart(there: list[Any], now: list[Any]) -> tuple[str, str]:
  """The first values that differ of two lists of name=value, whatever their names."""
  pairs = list(itertools.zip_longest(there, now, fillvalue='nothing'))
  differing = [pair for pair in pairs if _value(pair[0]) != _value(pair[1])][:3]
  one, other = (', '.join(str(pair[i]) for pair in differing) for i in range(2))
  return one, other


def _value(named: Any) -> Any:
  return named.partition('=')[2] or named if isinstance(named, str) else named


def changes(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> list[str]:
  """Sentences on what has changed since a run began, and may have changed results."""
  if not _is_described(config):
    return []
  if 'program' in old:
    return [
      f'{workdir} is of an earlier version, which described the method, its options, '
      'the model and the optimizer by a digest that this version cannot compare: make '
      'sure that they are those of the run that you continue.'
    ]
  sentences, remedy = [], 'choose another folder, or delete this one, to start again'
  there, now = old.get('versions', {}), config['versions']
  others = [
    f'{name} {there.get(name)}, now {now.get(name)}'
    for name in sorted(there.keys() | now.keys())
    if there.get(name) != now.get(name)
  ]
  if others:
    sentences.append(
      f'The run in {workdir} began with {"; ".join(others)}: its results may differ '
      f'from those of one version; {remedy}.'
    )
  if names := edited(old, config):
    sentences.append(
      f'{", ".join(names)} changed after the run in {workdir} had begun: its finished '
      f'rounds are of the earlier code; {remedy}.'
    )
  return sentences


def edited(old: dict[str, Any], config: dict[str, Any]) -> list[str]:
  """Names of functions of the user's own that were edited since a run began."""
  configs = old, config
  if not all(map(_is_described, configs)) or not _is_comparable(*configs):
    return []
  return _functions(*(each['code'] for each in configs))[0]


def _is_comparable(*configs: dict[str, Any]) -> bool:
  """True if digests of code are: each minor version of Python compiles otherwise."""
  versions = [str(config['versions'].get('python')) for config in configs]
  return len({tuple(version.split('.')[:2]) for version in versions}) == 1


def _functions(
  there: list[list[str]], now: list[list[str]]
) -> tuple[list[str], list[str]]:
  """Names of the user's functions that were edited, and of others that came or went.

  Those of a class or function that has others are edits of it. Functions in another
  order count as edited, if no other is; a name alone counts for nothing.
  """
  if [digest for _, digest in there] == [digest for _, digest in now]:
    return [], []
  codes = [
    [each for each in code if each[0] != identity.CALLS] for code in (there, now)
  ]
  edited: list[str] = []
  others: list[str] = []
  for mine, theirs in (codes, codes[::-1]):
    digests = {digest for _, digest in theirs}
    names = {name for name, _ in theirs} | {_owner(name) for name, _ in theirs}
    for name, digest in mine:
      if digest not in digests:
        known = name in names or _owner(name) in names - {''}
        (edited if known else others).append(name)
  if not edited and not others:
    edited = [name for name, _ in codes[1]]
  return list(dict.fromkeys(edited)), list(dict.fromkeys(others))


def _owner(name: str) -> str:
  """The name of the scope of a function, without its own name; '' for none."""
  return name.rpartition('.')[0]
