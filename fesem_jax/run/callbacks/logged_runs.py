"""The logged run of a workdir, which a resumed run continues; numbers of a record."""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line

_FILE = 'logged_runs.json'


def logged_run(
  workdir: pathlib.Path | None, logger: str, make: Callable[[], str]
) -> tuple[str, bool]:
  """The id of the logger's run, and whether it existed already.

  `make` creates a logged run and returns its id; without a workdir, it is called each
  time. Raises `UserError` if the file is damaged.
  """
  if workdir is None:
    return make(), False
  path = workdir / _FILE
  try:
    held = json.loads(path.read_bytes().decode()) if path.exists() else {}
    if not isinstance(held, dict) or not all(isinstance(x, str) for x in held.values()):
      raise ValueError('it holds no names and ids')
  except (OSError, ValueError, RecursionError) as e:
    raise UserError(
      f'{path} is damaged ({first_line(e)}); delete it, and further rounds are logged '
      'as new runs.'
    ) from e
  if logger in held:
    return held[logger], True
  held[logger] = make()
  write_atomically(path, json.dumps(held, indent=1) + '\n')
  return held[logger], False


def run_name(workdir: pathlib.Path | None) -> str | None:
  """The name of a run in loggers: the last two folders of its path."""
  return None if workdir is None else '/'.join(workdir.absolute().parts[-2:])


def scalars(value: Any, prefix: str = '') -> Iterator[tuple[str, float]]:
  """Every number of a nested record except the round, as ('deployed/micro_f1', 0.9).

  `value` is a record, or the value in it whose path is `prefix`.
  """
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from scalars(inner, f'{prefix}/{key}' if prefix else key)
  elif isinstance(value, list):
    for i, inner in enumerate(value):
      yield from scalars(inner, f'{prefix}/{i}')
  elif isinstance(value, int | float) and prefix != 'round':
    yield prefix, value
