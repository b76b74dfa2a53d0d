"""Rotated MNIST of Kim et al., "Clustered Federated Learning via Gradient-based
Partitioning" (CFL-GP), ICML 2024, as their code makes it.
"""

import numpy as np

from fesem_jax.data.partitions.grouped import rotate

from . import mnist_blocks

# 275 is what their code has; each two neighbors are one true cluster.
DEGREES = (0, 15, 90, 105, 180, 195, 270, 275)


def eight_angles(*, clients: int = 128) -> dict[str, np.ndarray]:
  """All of MNIST in file order, in eight parts that are turned by an angle each.

  `clients`, their number, is a multiple of 8. Clients are contiguous, with 70 % of
  their images for training. Corners are black.
  """
  images, y = mnist_blocks.all_images()
  parts = np.array_split(images, len(DEGREES))
  turned = [rotate(x, d, 'nearest') for x, d in zip(parts, DEGREES, strict=True)]
  size = len(images) // clients
  count = size * clients
  client = np.repeat(np.arange(clients), size)
  place = np.arange(count) % size
  return {
    'x': np.concatenate(turned)[:count],
    'y': y[:count],
    'client': client.astype(str),
    'split': (place >= int(0.7 * size)).astype(np.int32),
    'cluster': client * len(DEGREES) // clients // 2,
  }
