"""The folder of a result, and the result in it, which a new one would replace."""

import json
import pathlib
from typing import Any

from fesem_jax.run.configuration import check_same
from fesem_jax.utils.atomic_files import is_writable
from fesem_jax.utils.errors import UserError, WorkdirError, argument


def check_writable(flag: str, path: pathlib.Path, folder: pathlib.Path) -> None:
  """Raises `UserError`, naming a flag and its value, on a folder for no files."""
  if not is_writable(folder):
    raise UserError(f'{argument(flag, path)} cannot be written; choose another folder.')


def read(path: pathlib.Path) -> dict[str, Any]:
  """A file of JSON; empty where it is missing or damaged."""
  try:
    held = json.loads(path.read_text())
  except (OSError, ValueError, RecursionError):
    return {}
  return held if isinstance(held, dict) else {}


def _result(path: pathlib.Path) -> dict[str, Any]:
  """The result that a new one would replace; empty where there is none.

  Raises `WorkdirError` if the file is damaged.
  """
  held = read(path)
  if path.exists() and not held:
    raise _damaged(path)
  return held


def _damaged(path: pathlib.Path) -> WorkdirError:
  return WorkdirError(
    f'{path} is damaged; delete the file, or choose another --workdir.'
  )


def check_settings(path: pathlib.Path, settings: dict[str, Any]) -> None:
  """Raises `WorkdirError` if a file is the result of other settings."""
  held = _result(path)
  if not held:
    return
  if not isinstance(held.get('settings'), dict):
    raise WorkdirError(
      f'{path} is the result of an older version; choose another --workdir, or delete '
      'the file.'
    )
  check_same(path.parent, held['settings'], json.loads(json.dumps(settings)))


def check_rows(path: pathlib.Path, list_of_k: list[int], num_seeds: int) -> None:
  """Raises `WorkdirError` if a table of some K would lose rows or seeds."""
  held = _result(path)
  rows, held_seeds = held.get('rows', []), held.get('seeds', [])
  lists = isinstance(rows, list) and isinstance(held_seeds, list)
  if not lists or not all(isinstance(r, dict) and 'num_clusters' in r for r in rows):
    raise _damaged(path)
  every = [row['num_clusters'] for row in rows]
  if lost := [str(k) for k in every if k not in list_of_k]:
    raise WorkdirError(
      f'--num_clusters_list leaves out K = {", ".join(lost)} of {path}; list them too, '
      'or choose another --workdir.'
    )
  if (seeds := len(held_seeds)) > num_seeds:
    raise WorkdirError(
      f'{path} is of {seeds} seeds; give --num_seeds={seeds} or more, or choose '
      'another --workdir.'
    )
