"""MNIST of Dinh et al., "Personalized Federated Learning with Moreau Envelopes"
(pFedMe), NeurIPS 2020, as their code generates it.
"""

import random

import numpy as np

from fesem_jax.papers import mnist_blocks

_USERS, _LABELS = 20, 2


def mnist_two_labels(*, seed: int = 1) -> dict[str, np.ndarray]:
  """MNIST of 20 clients with labels u and u + 1 modulo 10, three quarters to train.

  Sizes come from the numbers of images of digits 0 and 1 alone, split at random into 20
  parts each, which clients take in turn whatever their labels; a block of a label that
  has too few images left is dropped. Pixels are standardized over all images.

  Args:
    seed: of sizes and of the order in which images are split, with the generators that
      their code takes (NumPy's legacy one and Python's), so that 1 gives their sizes.
  """
  sizes_rng, order = np.random.RandomState(seed), random.Random(seed)
  images, y = mnist_blocks.all_images()
  counts = np.bincount(y, minlength=10)
  parts = [_parts(sizes_rng, int(counts[digit])) for digit in range(_LABELS)]
  sizes = [part for pair in zip(*parts, strict=True) for part in pair]
  blocks = [
    [((user + j) % 10, sizes[_LABELS * user + j]) for j in range(_LABELS)]
    for user in range(_USERS)
  ]
  rows = mnist_blocks.dealt(blocks, y)
  split = []
  for i, own in enumerate(rows):
    shuffled = own.tolist()
    order.shuffle(shuffled)
    rows[i] = np.array(shuffled)
    split.append(np.arange(len(own)) >= int(0.75 * len(own)))
  taken = np.concatenate(rows)
  return {
    'x': mnist_blocks.standardized(images)[taken],
    'y': y[taken],
    'client': np.repeat(np.arange(_USERS), [len(r) for r in rows]),
    'split': np.concatenate(split).astype(np.int32),
  }


def _parts(rng: np.random.RandomState, total: int) -> list[int]:
  """A number as a sum of 20, each but the last between 1/21 and half of the rest."""
  found = []
  for _ in range(_USERS - 1):
    found.append(int(rng.randint(total // (_USERS + 1), total // 2)))
    total -= found[-1]
  return [*found, total]
