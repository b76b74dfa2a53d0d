"""The logger's run of a workdir, which a resumed run continues."""

import json
import pathlib
from collections.abc import Callable

from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line

_FILE = 'logged_runs.json'


def logged_run(
  workdir: pathlib.Path | None, logger: str, make: Callable[[], str]
) -> tuple[str, bool]:
  """The id of the logger's run, and whether it existed already.

  Args:
    workdir: of the run; None creates a new logged run each time.
    logger: its name.
    make: creates a logged run and returns its id.

  Raises:
    UserError: if the file is damaged.
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
