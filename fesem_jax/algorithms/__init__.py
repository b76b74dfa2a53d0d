"""Every method by its flag name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.algorithms.fesem import fesem
from fesem_jax.algorithms.non_fed import non_fed
from fesem_jax.base import Algorithm, UserError, check_choice
from fesem_jax.local import LocalTraining

METHODS: Mapping[str, Callable[..., Algorithm]] = {
  'non_fed': non_fed,
  'fed_avg': fed_avg,
  'fesem': fesem,
}


def options(name: str) -> dict[str, Any]:
  """The options of a method and their defaults: its keyword-only arguments."""
  check_choice('algorithm', name, tuple(METHODS))
  parameters = inspect.signature(METHODS[name]).parameters.values()
  return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_options(name: str, chosen: Mapping[str, Any]) -> None:
  """Raises `UserError` on an unknown method or an option it does not have."""
  allowed = options(name)
  for option in chosen:
    if option not in allowed:
      listed = ', '.join('--' + o for o in allowed) or 'none'
      raise UserError(
        f'--{option} does not apply to --algorithm={name}, whose options are: {listed}.'
      )


def build(name: str, local: LocalTraining, **chosen: Any) -> Algorithm:
  """A method with the chosen options.

  Raises:
    UserError: on an unknown method, or an option it does not have or allow.
  """
  check_options(name, chosen)
  return METHODS[name](local, **chosen)
