"""Errors for mistakes of users, and names of arguments in messages."""

import os
import pathlib
from typing import Any


class UserError(ValueError):
  """A mistake of the user: `subject: problem; remedy`, about an argument or a file."""


class WorkdirError(UserError):
  """A workdir that a run cannot use."""


class Diverged(UserError):  # noqa: N818 - the outcome of a run.
  """A round without any finite update, or whose loss or Eq. 6 is not finite."""


def check(holds: object, message: str) -> None:
  """Raises `UserError` with `message`, `subject: problem; remedy`, unless it holds."""
  if not holds:
    raise UserError(message)


def path_of(name: str, value: Any, or_else: str = '') -> pathlib.Path:
  """The path that an argument gives; `UserError` if it gives something else."""
  if not isinstance(value, str | os.PathLike):
    raise UserError(f'{name}: is {value!r:.60}; give a path{or_else}')
  return pathlib.Path(value)
