"""A backdoor: a pattern on examples that bad clients teach models to see as one class.

Gu et al., "BadNets", 2017; Bagdasaryan et al., "How To Backdoor Federated Learning",
AISTATS 2020.
"""

import numpy as np

from fesem_jax.core import prng_streams
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils.errors import UserError, argument

# Share of a bad client's examples that have the pattern.
SHARE = 0.5


def corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
  """Where the pattern is in an example of a shape.

  A square at the lower right of an image, a quarter of its height or 2 pixels of small
  ones; the last features of a vector, an eighth of them.
  """
  sides = shape[:2] if len(shape) > 1 else shape
  size = max(2, shape[0] // 8) if len(sides) > 1 else max(1, shape[0] // 8)
  return tuple(slice(max(0, s - size), s) for s in sides)


def mask(shape: tuple[int, ...], width: int | None = None) -> np.ndarray:
  """Bool, True in the `corner` of an example of a shape.

  With a `width`, the example is flat and padded, [width], as on devices.
  """
  patch = np.zeros(shape, bool)
  patch[corner(shape)] = True
  return patch if width is None else np.pad(patch.ravel(), (0, width - patch.size))


def poisoned(
  train: FederatedData, bad: np.ndarray, target: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """The examples and labels of a training split whose bad clients teach a backdoor.

  Of each bad client, `SHARE` of the examples, drawn once, have the pattern, the largest
  value of the split, and the label `target`.

  Args:
    train: training split of M clients, on the host.
    bad: [M] bool.
    target: the class, in 0..L-1.
    seed: of the run.

  Raises:
    UserError: if the data have no classes, no such class, or are tokens.
  """
  named = argument('corrupt', f'backdoor:{target}')
  if train.task != CLASSIFICATION.name:
    raise UserError(f'{named} needs labels of classes, but the data are {train.task}.')
  if not 0 <= target < train.num_classes:
    raise UserError(f'{named} must name a class in 0..{train.num_classes - 1}.')
  x, y = np.asarray(train.x), np.array(train.y)
  if not len(x):
    return x, y
  rng = prng_streams.host_rng(seed, prng_streams.BACKDOOR)
  drawn = rng.random(len(y)) < SHARE
  drawn &= np.repeat(bad, np.diff(np.asarray(train.offsets)))
  x, value = np.array(x), np.asarray(x).max()
  x[drawn] = np.where(mask(train.example_shape), value, x[drawn])
  y[drawn] = target
  return x, y
