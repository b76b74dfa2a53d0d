"""Errors for mistakes of users, and the names of arguments."""

from collections.abc import Sequence

from fesem_jax.utils.display import printable


class UserError(ValueError):
  """A mistake of the user's, in one sentence that names the argument or file.

  Arguments stand in backquotes, `name` or `name=value`, so that the experiment
  binaries can name their flags instead; see `argument`.
  """


class Diverged(UserError):  # noqa: N818 - the outcome of a run.
  """A round in which no client, or not the loss or Eq. 6, came out finite."""


def argument(name: str, *value: object) -> str:
  """How an error names an argument, with the value that was given if there is one."""
  return f'`{"=".join([name, *(printable(v).replace("`", "?") for v in value)])}`'


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
  """Raises `UserError` unless argument `name` is among `allowed`."""
  if value not in allowed:
    raise UserError(
      f'{argument(name, value)} is unknown; choose one of {", ".join(allowed)}.'
    )


def check_at_least(least: float, **values: float) -> None:
  """Raises `UserError` naming the first argument of `values` below `least`."""
  for name, value in values.items():
    if not value >= least:  # NaN is refused too.
      raise UserError(f'{argument(name, value)} must be at least {least}.')


def check_positive(**values: float) -> None:
  """Raises `UserError` naming the first argument of `values` that is not positive."""
  for name, value in values.items():
    if not value > 0:  # NaN is refused too.
      raise UserError(f'{argument(name, value)} must be positive.')


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
