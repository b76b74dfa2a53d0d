"""Errors and warnings for mistakes of users."""

import functools

from absl import logging

# A comparison loads its data for every method, and a notebook for every cell.
warn_once = functools.cache(logging.warning)


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
