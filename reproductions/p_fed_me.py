"""Data and rounds of Dinh et al., "Personalized Federated Learning with Moreau
Envelopes" (pFedMe), NeurIPS 2020, as in their code.
"""

import functools
import random
from typing import Any

import numpy as np

from fesem_jax.algorithms.p_fed_me import p_fed_me
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sampling import everyone

from . import mnist_blocks
from .fed_prox import CLASSES, DIMENSION, of_clients

_USERS, _LABELS = 20, 2  # Of MNIST.
_CLIENTS = 100  # Of Synthetic.


@functools.wraps(p_fed_me, assigned=())  # With its options.
def all_clients_train(local: LocalTraining, **options: Any) -> Algorithm:
  """`p_fed_me` whose personal models train in every round.

  The cohort of the round decides which clients are averaged. In the algorithm of the
  paper, clients outside of the cohort keep their personal models.

  Args:
    local: how clients train.
    **options: of `p_fed_me`.
  """
  method = p_fed_me(local, **options)

  def step(state, data, cohort, key):
    averaged, info = method.step(state, data, cohort, key)
    trained, _ = method.step(state, data, everyone(data), key)
    return averaged._replace(client_params=trained.client_params), info

  return method._replace(step=step)


def synthetic(*, seed: int = 0) -> dict[str, np.ndarray]:
  """Synthetic(0.5, 0.5) of 100 clients, with the very draws of their code.

  `fed_prox.synthetic` draws other clients with the same distribution. Nine tenths of a
  client's examples are for training, which ones is drawn anew here: their code splits
  them with a generator that has no seed. `seed` is that of NumPy's legacy generator;
  theirs is 0.
  """
  rng = np.random.RandomState(seed)
  sizes = (rng.lognormal(4, 2, _CLIENTS).astype(int) + 50) * 5
  of_models, of_features = rng.normal(0, 0.5, _CLIENTS), rng.normal(0, 0.5, _CLIENTS)
  variance = np.diag(np.arange(1, DIMENSION + 1) ** -1.2)
  middles = [rng.normal(mean, 1, DIMENSION) for mean in of_features]
  xs, ys = [], []
  for size, center, middle in zip(sizes, of_models, middles, strict=True):
    kernel = rng.normal(center, 1, (DIMENSION, CLASSES))
    bias = rng.normal(center, 1, CLASSES)
    x = rng.multivariate_normal(middle, variance, size)
    xs.append(x.astype(np.float32))
    ys.append((x @ kernel + bias).argmax(axis=1))
  splits = [rng.permutation(size) >= int(0.9 * size) for size in sizes]
  return of_clients(xs, ys, splits)


def mnist_two_labels(*, seed: int = 1) -> dict[str, np.ndarray]:
  """MNIST of 20 clients with labels u and u + 1 modulo 10, as published in 2020.

  The images of each digit are split at random into four sizes, which its four clients
  take in turn. The generator of 2020 has no places of images that are taken, so each of
  the four gets the first images of the digit: clients share images, and what one tests
  on, others train on. Labels lag behind images by one at the start of a client's second
  label. Three quarters are for training; pixels are standardized over all images.
  `seed` is that of sizes and of the order in which images are split, with the
  generators that their code takes (NumPy's legacy one and Python's), so that 1 gives
  their sizes.
  """
  rng = np.random.RandomState(seed)
  images, y = mnist_blocks.all_images()
  counts = np.bincount(y, minlength=10)
  sizes = _in_turn([_parts(rng, int(count), 4) for count in counts])
  of_digit = [np.flatnonzero(y == digit) for digit in range(10)]
  # A mask of the images of digit 9 stands for the places, and adding makes it True.
  places = [int(target == 9) for target in y[:10]]
  rows, labels = [], []
  for user in range(_USERS):
    taken: list[int] = []
    named: list[int] = []
    for j in range(_LABELS):
      digit, size = (user + j) % 10, sizes[_LABELS * user + j]
      if places[digit] + size < len(of_digit[digit]):
        taken += of_digit[digit][places[digit] : size].tolist()
        named += [digit] * size
        places[digit] = 1
    rows.append(np.array(taken))
    labels.append(np.array(named[: len(taken)]))
  return _clients(images, rows, labels, seed)


def mnist_two_labels_of_2021(*, seed: int = 1) -> dict[str, np.ndarray]:
  """The same as the generator that replaced it in June 2021 has it.

  Clients share no images. Sizes come from the numbers of images of digits 0 and 1
  alone, split into 20 parts each; a block of a label that has too few images left is
  dropped, so that most clients have few. `seed` is that of `mnist_two_labels`.
  """
  rng = np.random.RandomState(seed)
  images, y = mnist_blocks.all_images()
  counts = np.bincount(y, minlength=10)
  sizes = _in_turn(
    [_parts(rng, int(counts[digit]), _USERS) for digit in range(_LABELS)]
  )
  blocks = [
    [((user + j) % 10, sizes[_LABELS * user + j]) for j in range(_LABELS)]
    for user in range(_USERS)
  ]
  rows = mnist_blocks.dealt(blocks, y)
  return _clients(images, rows, [y[r] for r in rows], seed)


def _clients(
  images: np.ndarray, rows: list[np.ndarray], labels: list[np.ndarray], seed: int
) -> dict[str, np.ndarray]:
  """Arrays of clients, three quarters of each to train."""
  order, split = random.Random(seed), []
  taken, named = [], []
  for own, of_own in zip(rows, labels, strict=True):
    shuffled = list(range(len(own)))
    order.shuffle(shuffled)
    taken.append(own[shuffled])
    named.append(of_own[shuffled])
    split.append(np.arange(len(own)) >= int(0.75 * len(own)))
  return {
    'x': mnist_blocks.standardized(images)[np.concatenate(taken)],
    'y': np.concatenate(named).astype(np.int32),
    'client': np.repeat(np.arange(len(rows)), [len(r) for r in rows]).astype(str),
    'split': np.concatenate(split).astype(np.int32),
  }


def _in_turn(parts: list[list[int]]) -> list[int]:
  """The first part of each digit, then the second of each, and so on."""
  return [part for turn in zip(*parts, strict=True) for part in turn]


def _parts(rng: np.random.RandomState, total: int, count: int) -> list[int]:
  """A number as a sum; each part but the last is at most half of the rest."""
  sizes = []
  for _ in range(count - 1):
    sizes.append(int(rng.randint(total // (count + 1), total // 2)))
    total -= sizes[-1]
  return [*sizes, total]
