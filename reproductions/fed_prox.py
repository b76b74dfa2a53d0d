"""Data of Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx),
MLSys 2020, as their code generates them; FLUTE and pFedMe took them over.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.types import Model
from fesem_jax.models import build
from fesem_jax.tasks.classification import cross_entropy

from . import mnist_blocks

DIMENSION, CLASSES = 60, 10
_USERS, _FIRST = 1000, 5


def mnist_power_law(*, seed: int = 0) -> dict[str, np.ndarray]:
  """MNIST of 1,000 clients with two labels each, in sizes by a power law.

  Client u has labels u and u + 1 modulo 10: five images of each, and shares of the rest
  in proportion to exp(N(0, 2^2)). Pixels are standardized over all images. Nine tenths
  of a client's images are for training. The authors' generator has no seed; here `seed`
  is that of all draws.
  """
  rng = np.random.default_rng(seed)
  images, y = mnist_blocks.all_images()
  counts = np.bincount(y, minlength=CLASSES)
  shares = rng.lognormal(0, 2, (CLASSES, _USERS // 10, 2))
  shares /= shares.sum(axis=(1, 2), keepdims=True)
  more = (shares * (counts - _USERS)[:, None, None]).astype(int)
  labels = [[(user + j) % CLASSES for j in range(2)] for user in range(_USERS)]
  first = [[(label, _FIRST) for label in own] for own in labels]
  others = [
    [(label, more[label, user // 10, j]) for j, label in enumerate(own)]
    for user, own in enumerate(labels)
  ]
  # All clients get their first images before any gets more.
  rows = mnist_blocks.dealt([*first, *others], y)
  own = [
    np.concatenate(pair) for pair in zip(rows[:_USERS], rows[_USERS:], strict=True)
  ]
  taken, client, split = mnist_blocks.divided(rng, own, 0.9)
  x = mnist_blocks.standardized(images)[taken]
  return {'x': x, 'y': y[taken], 'client': client.astype(str), 'split': split}


def synthetic(
  *,
  alpha: float = 0.0,
  beta: float = 0.0,
  alike: bool = False,
  clients: int = 30,
  repeats: int = 1,
  seed: int = 0,
) -> dict[str, np.ndarray]:
  """Synthetic(alpha, beta): softmax labels of a linear model of each client.

  As `--dataset=synthetic`; here nine tenths of a client's examples are for training, as
  in the authors' code.

  Args:
    alpha: standard deviation of the means of clients' models.
    beta: of those of clients' features.
    alike: one model and one distribution of features for all clients, theirs i.i.d.
    clients: 30; pFedMe has 100.
    repeats: what sizes, 50 + exp(N(4, 2^2)), are multiplied by; 5 in pFedMe.
    seed: of all draws.
  """
  rng = np.random.default_rng(seed)
  sizes = (rng.lognormal(4, 2, clients).astype(int) + 50) * repeats
  deviation = np.arange(1, DIMENSION + 1) ** -0.6
  of_models, of_features = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
  kernel = rng.normal(size=(DIMENSION, CLASSES))
  bias = rng.normal(size=CLASSES)
  xs, ys, splits = [], [], []
  for size, center, mean in zip(sizes, of_models, of_features, strict=True):
    if alike:
      middle = np.full(DIMENSION, mean)
    else:
      kernel = rng.normal(center, 1, (DIMENSION, CLASSES))
      bias = rng.normal(center, 1, CLASSES)
      middle = rng.normal(mean, 1, DIMENSION)
    x = rng.normal(middle, deviation, (size, DIMENSION))
    xs.append(x.astype(np.float32))
    ys.append((x @ kernel + bias).argmax(axis=1))
    splits.append(np.arange(size) >= int(0.9 * size))
  return of_clients(xs, ys, splits)


def of_clients(
  xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], splits: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
  """Arrays of a data set from features, labels and splits of each client in turn."""
  return {
    'x': np.concatenate(xs),
    'y': np.concatenate(ys).astype(np.int32),
    'client': np.repeat(np.arange(len(ys)), [len(y) for y in ys]).astype(str),
    'split': np.concatenate(splits).astype(np.int32),
    'num_classes': np.array(CLASSES),
  }


def sigmoid_logistic(example_shape: tuple[int, ...], num_classes: int) -> Model:
  """Logistic regression whose outputs pass a sigmoid before the cross entropy.

  FLUTE's model of MNIST, which takes the sigmoid's values for logits.
  """
  model = build('logistic', example_shape, num_classes)

  def loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    return cross_entropy(jax.nn.sigmoid(logits), jnp.asarray(y))

  return model._replace(loss=loss)
