"""Errors for mistakes of users, and names of arguments in messages."""

import numbers
import os
import pathlib
from typing import Any

from fesem_jax.utils.display import printable


class UserError(ValueError):
  """A mistake of the user, in one sentence that names the argument or file.

  Arguments are in backquotes, `name` or `name=value`, so that the experiment binaries
  can translate them to flags; see `argument`.
  """


class WorkdirError(UserError):
  """A workdir that a run cannot use, e.g. since it holds another run."""


class Diverged(UserError):  # noqa: N818 - the outcome of a run.
  """A round without any finite update, or whose loss or Eq. 6 is not finite."""


def check(holds: object, message: str) -> None:
  """Raises `UserError` with `message`, `subject: problem; remedy`, unless it holds."""
  if not holds:
    raise UserError(message)


def argument(name: str, *value: object) -> str:
  """An argument in an error message, with its value if one is given."""
  return f'`{"=".join([name, *(printable(v).replace("`", "?") for v in value)])}`'


def path_of(name: str, value: Any, or_else: str = '') -> pathlib.Path:
  """The path that an argument gives; `UserError` if it gives something else."""
  if not isinstance(value, str | os.PathLike):
    raise UserError(f'{name}: is {value!r:.60}; give a path{or_else}')
  return pathlib.Path(value)


def check_at_least(least: float, **values: float) -> None:
  """Raises `UserError` naming the first argument of `values` below `least`."""
  for name, value in values.items():
    if not value >= least:  # NaN is refused too.
      raise UserError(f'{argument(name, value)} must be at least {least}.')


def check_whole(**values: float) -> None:
  """Raises `UserError` naming the first argument of `values` that is no integer."""
  for name, value in values.items():
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
      raise UserError(f'{argument(name, value)} must be a whole number.')


def check_between(least: float, most: float, **values: float) -> None:
  """Raises `UserError` naming the first argument of `values` outside [least, most]."""
  for name, value in values.items():
    if not least <= value <= most:
      raise UserError(f'{argument(name, value)} must lie in [{least:g}, {most:g}].')


def check_share(upper: float = 1.0, **values: float) -> None:
  """Raises `UserError` naming the first argument of `values` outside [0, upper)."""
  for name, value in values.items():
    if not 0 <= value < upper:
      raise UserError(f'{argument(name, value)} must lie in [0, {upper:g}).')
