"""FLUX's four kinds of shift, and clients that come without labels."""

from typing import Any

import numpy as np

import fesem_jax as fj
from fesem_jax.data.partitions.grouped import rotate

from .groups_of_labels import images

# `public/generate_datasets.py`: rotations and colors of each level of P(X).
_ROTATIONS = (2, 3, 4, 5, 2, 3, 4, 5)
_COLORS = (1, 1, 1, 1, 3, 3, 3, 3)
_CLIENTS = 10


def shifted(
  *, kind: int = 0, level: int = 8, dataset: str = 'mnist', every: int = 1
) -> dict[str, np.ndarray]:
  """Ten clients of FLUX's generator ANDA, each with a tenth of all images.

  Kinds, at levels from 1 to 8:
    0  P(X): each client has one of 2 to 5 rotations; from level 5, one of 3 colors too
    1  P(Y): each client has one of five sets of 11 - level labels; images of it are
       drawn again until it has a tenth of all
    2  P(X|Y): images of `level` labels, the same for all clients, are rotated by a
       multiple of 90 degrees, drawn for each client and label
    3  P(Y|X): each client permutes the same `level` labels

  Of training images 80 % train; FLUX's code validates on the others. `every` leaves
  only one of so many images.
  """
  x, y, split = (part[::every] for part in images(dataset))
  rng = np.random.default_rng([kind, level])
  angles = 360 / _ROTATIONS[level - 1] * np.arange(_ROTATIONS[level - 1])
  sets = [rng.choice(10, 11 - level, replace=False) for _ in range(5)]
  chosen = rng.choice(10, level, replace=False)
  pictures, labels, names, parts = [], [], [], []
  deals = [
    np.array_split(rng.permutation(np.flatnonzero(split == part)), _CLIENTS)
    for part in (0, 1)
  ]
  for client in range(_CLIENTS):
    angle, color = rng.choice(angles), rng.integers(_COLORS[level - 1])
    turns, fitting = rng.integers(4, size=10), sets[rng.integers(5)]
    renamed = np.arange(10)
    renamed[chosen] = rng.permutation(chosen)
    for part in (0, 1):
      row = deals[part][client]
      if kind == 1:
        row = row[np.isin(y[row], fitting)]
        row = np.append(row, rng.choice(row, len(row) * (level - 1) // (11 - level)))
      picture, label = x[row], y[row]
      if kind == 0:
        picture = _colored(rotate(picture, angle, 'nearest'))
        if level > 4:
          picture[..., color] = 255
      if kind == 2:
        picture = _colored(picture)
        for c in chosen:
          picture[label == c] = np.rot90(picture[label == c], turns[c], axes=(1, 2))
      if kind == 3:
        label = renamed[label]
      count = len(row) if part else len(row) * 4 // 5
      pictures.append(picture[:count])
      labels.append(label[:count])
      names.append(np.full(count, client))
      parts.append(np.full(count, part, np.int32))
  return {
    'x': np.concatenate(pictures), 'y': np.concatenate(labels),
    'client': np.concatenate(names).astype(str), 'split': np.concatenate(parts),
  }  # fmt: skip


def _colored(x: np.ndarray) -> np.ndarray:
  """A copy of images with three channels."""
  return np.array(x) if x.ndim == 4 else np.repeat(x[..., None], 3, axis=3)


class _Strangers(fj.Callback):
  def on_round(self, event: Any) -> None:
    if event.measured is None or event.assignment is None:
      return
    pairs = [event.test.client(i) for i in range(event.test.num_clients)]
    x, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    shares = np.bincount(event.assignment) / len(event.assignment)
    predictions = [event.models.predict(x, cluster=k) for k in range(len(shares))]
    right = [np.mean(prediction == y) for prediction in predictions]
    event.record['unlabeled'] = {'micro_accuracy': float(shares @ right)}


def strangers() -> fj.Callback:
  """Records the accuracy of clients that join the center of a random client."""
  return _Strangers()
