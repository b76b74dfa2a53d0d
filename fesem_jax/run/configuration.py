"""Whether two configurations belong to the same run."""

import itertools
import pathlib
from typing import Any

from fesem_jax.core import identity
from fesem_jax.utils.errors import WorkdirError

# What may change between two runs of one workdir: it decides where and how fast a
# run happens, how long it is and what is reported, not its results. A change of
# the user's own functions, or of versions, only gives a warning.
_FREE = {
  'workdir', 'data_dir', 'resume', 'rounds', 'clients_per_chunk', 'shared_start',
  'num_devices', 'tensorboard', 'checkpoint_every', 'patience', 'own_code',
  'code', 'versions',
}  # fmt: skip

# What identifies a method of Python; workdirs of versions until 0.3 have in its place
# `program`, a digest of compiled programs, which no other version gets.
_OF_METHOD = {
  'method', 'model', 'optimizer', 'training', 'selection', 'settings_of_jax',
}  # fmt: skip


def check_same(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> None:
  """Raises `WorkdirError` naming each entry that differs and may not."""
  differing = []
  free = _FREE
  if 'program' in old and 'method' in config:
    free = free | _OF_METHOD | {'program'}
  for name in sorted((old.keys() | config.keys()) - free):
    # Configurations name the placement only where it is not this one.
    default = 'replicated' if name == 'data_placement' else 'absent'
    there, now = old.get(name, default), config.get(name, default)
    if name in _OF_METHOD and isinstance(there, list) and isinstance(now, list):
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
  if differing:
    raise WorkdirError(
      f'`workdir={workdir}` holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )


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
  if 'method' not in config:
    return []
  if 'program' in old:
    return [
      f'{workdir} is of an earlier version, which described the method, its options, '
      'the model and the optimizer by a digest that this version cannot compare: make '
      'sure that they are those of the run that you continue.'
    ]
  said, remedy = [], 'choose another folder, or delete this one, to start again'
  there, now = old.get('versions', {}), config['versions']
  others = [
    f'{name} {there.get(name)}, now {now.get(name)}'
    for name in sorted(there.keys() | now.keys())
    if there.get(name) != now.get(name)
  ]
  if others:
    said.append(
      f'The run in {workdir} began with {"; ".join(others)}: its results may differ '
      f'from those of one version; {remedy}.'
    )
  # Other versions of Python compile the same function differently.
  comparable = _minor(there) == _minor(now)
  if comparable and (names := _edited(old.get('code', []), config['code'])):
    said.append(
      f'{", ".join(names)} changed after the run in {workdir} had begun: its finished '
      f'rounds are of the earlier code; {remedy}.'
    )
  return said


def _minor(versions: dict[str, Any]) -> list[str]:
  return str(versions.get('python')).split('.')[:2]


def _edited(there: list[list[str]], now: list[list[str]]) -> list[str]:
  """Names of the user's functions that are not as they were, or in another order."""
  digests = [digest for _, digest in there]
  if digests == [digest for _, digest in now]:
    return []
  mine = [(name, digest) for name, digest in now if name != identity.CALLS]
  others = [name for name, digest in mine if digest not in digests]
  return list(dict.fromkeys(others or [name for name, _ in mine] or ['The method']))
