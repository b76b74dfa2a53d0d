"""All 70,000 images of MNIST, as generators that deal them in blocks take them."""

import numpy as np

from fesem_jax.data import sources

_FLOOR = 0.001  # Added to the deviation of a pixel, as many are always 0.


def all_images() -> tuple[np.ndarray, np.ndarray]:
  """Training images, then test images, in the order of their files.

  Returns x [70000, 28, 28] uint8 and y [70000] int32, from the folder mnist/ of
  FESEM_DATA_DIR. Raises `UserError` if a file is absent or damaged.
  """
  pool = sources.read('mnist')
  return pool.x, pool.y


def standardized(x: np.ndarray) -> np.ndarray:
  """[N, 784] float32: each pixel minus its mean, over its deviation plus 0.001."""
  flat = x.reshape(len(x), -1).astype(np.float32)
  return (flat - flat.mean(axis=0)) / (flat.std(axis=0) + _FLOOR)


def dealt(blocks: list[list[tuple[int, int]]], y: np.ndarray) -> list[np.ndarray]:
  """Rows of each client from blocks of labels, which are dealt in turn.

  `blocks` are (label, number of images), of each client in turn; `y` are [N] labels. A
  block that would not leave at least one image of its label is left out.
  """
  rows = [np.flatnonzero(y == label) for label in range(10)]
  used, clients = [0] * 10, []
  for of_client in blocks:
    taken = [np.zeros(0, np.int64)]
    for label, count in of_client:
      if used[label] + count < len(rows[label]):
        taken.append(rows[label][used[label] : used[label] + count])
        used[label] += count
    clients.append(np.concatenate(taken))
  return clients


def divided(
  rng: np.random.Generator, rows: list[np.ndarray], share: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Each client's rows in a random order, the first of which are for training.

  `share` of a client's rows, rounded down, are for training. Returns (rows [T],
  client [T], split [T]: 0 training, 1 test).
  """
  shuffled = [rng.permutation(r) for r in rows]
  split = [np.arange(len(r)) >= int(share * len(r)) for r in shuffled]
  client = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
  return np.concatenate(shuffled), client, np.concatenate(split).astype(np.int32)
