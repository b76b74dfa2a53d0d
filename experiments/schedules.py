"""Learning rates over rounds, by name."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from fesem_jax.utils.errors import UserError

FORMS = 'constant, cosine, cosine:ROUNDS, exponential:RATE or step:EVERY:FACTOR'


def resolved(text: str, rounds: int) -> str:
  """The schedule with all that it depends on: cosine becomes cosine:ROUNDS."""
  return f'cosine:{rounds}' if text == 'cosine' else text


def build(text: str) -> Callable[[Any], Any] | None:
  """The schedule that `resolved` names; None is constant.

  It gives the multiplier of --learning_rate in round r, counted from 0:
  (1 + cos(pi r / ROUNDS)) / 2, RATE^r, or FACTOR^(r // EVERY).
  """
  name, *numbers = text.split(':')
  try:
    values = [float(n) for n in numbers]
  except ValueError:
    values = [math.nan]
  single = np.finfo(np.float32)
  least, most = float(single.tiny), float(single.max)
  fits = all(least <= v <= most for v in values)  # NaN does not.
  # Whether the first is a number of rounds.
  counts = fits and bool(values) and values[0] == int(values[0]) <= 2**31 - 1
  if name == 'constant' and not values:
    return None
  if name == 'cosine' and len(values) == 1 and counts:
    return _of_numbers(optax.cosine_decay_schedule, values[0])
  if name == 'exponential' and len(values) == 1 and fits:
    return _of_numbers(optax.exponential_decay, 1, values[0])
  if name == 'step' and len(values) == 2 and counts:
    return _of_numbers(optax.exponential_decay, *values, staircase=True)
  raise UserError(f'lr_schedule: unknown {text!r}; expected {FORMS}')


def _of_numbers(
  make: Callable[..., Callable[[Any], Any]], *numbers: float, **options: Any
) -> Callable[[Any], Any]:
  """A schedule of Optax from 1 on, whose numbers are constants of programs."""
  return make(1.0, *numbers, **options)
