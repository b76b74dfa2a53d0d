"""What a loader returns before examples are dealt to clients."""

from typing import NamedTuple

import numpy as np


class Pool(NamedTuple):
  """The examples of a data set.

  Attributes:
    x: [T, ...] uint8 or float32 features.
    y: [T] integer labels.
    num_classes: L.
    scale: `x * scale` is what models see.
    test_x: the data set's own test examples, or None.
    test_y: their labels, or None.
    client: [T] integer natural client of each example, or None.
    names: names of the natural clients, or None.
    clusters: true cluster of each natural client, or None.
  """

  x: np.ndarray
  y: np.ndarray
  num_classes: int
  scale: float
  test_x: np.ndarray | None = None
  test_y: np.ndarray | None = None
  client: np.ndarray | None = None
  names: np.ndarray | None = None
  clusters: np.ndarray | None = None
